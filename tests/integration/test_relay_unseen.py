"""With its relay beside it and an endpoint that takes everything, a rank is what it is without trainspan."""

from pathlib import Path

import pytest

from tests.integration.recorded import Pair, start, start_ranks
from tests.integration.relayed import spans_of, wait_for_relay
from trainspan.testing.otlp_sink import OtlpSink


@pytest.mark.parametrize("ranks", [None, 2], ids=["alone", "torchrun"])
def test_nothing_in_a_rank_differs_while_a_relay_exports(tmp_path: Path, ranks: int | None) -> None:
    """No thread, no socket, no OpenTelemetry, the same weights: the relay is another process, whoever started it."""
    with OtlpSink() as sink:
        switches = {**sink.environ, "TRAINSPAN_RELAY": "process"}
        runs = [
            start("loops.py", "plain", state=state, **switches)
            if ranks is None
            else start_ranks(ranks, "ddp.py", state=state, **switches)
            for state in (None, tmp_path)
        ]
        pair = Pair(*(run.ended() for run in runs))
        wait_for_relay(tmp_path)

    assert pair.recorded.exit_code == pair.alone.exit_code == 0
    assert not any(pair.differences("pid"))
    assert not any(line["opentelemetry"] for line in pair.recorded.lines if "scenario" in line)
    assert {span.attributes["training.rank"] for span in spans_of(sink) if span.name == "training.rank_step"} == set(
        range(ranks or 1)
    )
