"""A script that is started again under the run's id, as one does after a crash: nobody has to count."""

import json
import signal
from pathlib import Path

import pytest

from tests.integration.relayed import SpanSeen, latest_numbers, spans_of, train, wait_for_relay
from trainspan.cli.main import main
from trainspan.testing.otlp_sink import OtlpSink

RUN = {"TRAINSPAN_RUN_ID": "again"}


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> OtlpSink:
    """What was sent of a run that was killed, started again, and then once more under torchrun."""
    state = tmp_path_factory.mktemp("state")
    paced = ("paced.py", "1", "0.02", str(state / "model.pt"))
    with OtlpSink() as sink:
        environ = {**sink.environ, **RUN}
        assert train("mortal.py", "backward", "kill", "6", state=state, environ=environ).exit_code == -signal.SIGKILL
        wait_for_relay(state)
        for ranks in (None, 2):
            assert train(*paced, state=state, environ=environ, ranks=ranks).exit_code == 0
            wait_for_relay(state)
    return sink


def test_each_launch_is_an_attempt(sink: OtlpSink) -> None:
    """With ids of its own: a trace of two launches shows neither."""
    spans: list[SpanSeen] = spans_of(sink)

    ids = [(span.trace, span.span) for span in spans]
    steps = {(s.resource["training.attempt"], s.attributes["training.rank"]) for s in spans if s.name.endswith("_step")}

    assert len(set(ids)) == len(ids)
    assert steps == {(0, 0), (1, 0), (2, 0), (2, 1)}


def test_launches_are_counted_live_by_why(sink: OtlpSink) -> None:
    """The first had failed; the second had ended well."""
    told = latest_numbers(sink, "training.restarts")

    assert {reason: count for (*_, reason), count in told.items() if count} == {"failure": 1, "planned": 1}


def test_cache_of_the_samples_is_not_what_the_run_resumed_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is saved and loaded like the checkpoint, and is the larger; the script says itself where it went on."""
    state = tmp_path / "state"
    killed = train("cached.py", str(tmp_path), "kill", state=state, environ=RUN)
    wait_for_relay(state)
    again = train("cached.py", str(tmp_path), state=state, environ=RUN)
    wait_for_relay(state)

    assert main(["goodput", "again", "--dir", str(state), "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    (recovery,) = said["recoveries"]
    assert [ended.lines for ended in (killed, again)] == [[{"first": 0}], [{"first": 8}]]
    assert (recovery["resumed_step"], recovery["known_by"], recovery["lost_steps"]) == (8, "load", 2)
    assert (said["steps"], said["steps_lost"], said["last_step"]) == (20, 2, 19)
