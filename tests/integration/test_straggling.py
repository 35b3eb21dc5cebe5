"""A rank that holds the others up in every step: its steps have traces that say so, without being slow."""

from pathlib import Path

from tests.integration.relayed import by_trace, spans_of, train, wait_for_relay
from trainspan.relay.signals.sampling import SLOW_AFTER, SLOW_BURST
from trainspan.testing.otlp_sink import OtlpSink

STEPS = 40


def test_steps_that_one_rank_makes_half_as_long_again_say_so(tmp_path: Path) -> None:
    """All of them are alike, so none is slow; a gateway would thin out the very traces that show who is late."""
    with OtlpSink() as sink:
        ended = train("straggling_ddp.py", str(STEPS), "0.1", state=tmp_path, environ=sink.environ, ranks=2)
        wait_for_relay(tmp_path)
        spans = spans_of(sink)

    assert ended.exit_code == 0, ended.stderr
    straggling = [t for t in by_trace(spans).values() if t[0].attributes.get("training.sampled.reason") == "straggler"]
    roots = [span for trace in straggling for span in trace if span.name == "training.step"]
    assert SLOW_BURST <= len(roots) <= SLOW_BURST + 3  # those of the fixed share say it too
    assert min(root.attributes["training.step"] for root in roots) >= SLOW_AFTER
    for trace in straggling:
        waited = {s.resource["training.rank"]: s.duration_ns for s in trace if s.name == "training.data_wait"}
        parts = {s.resource["training.rank"] for s in trace if s.name == "training.rank_step"}
        assert parts == {0, 1}
        assert waited[1] > 40_000_000 > waited.get(0, 0)
