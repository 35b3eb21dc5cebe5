"""What the script says, as it arrives over real OTLP."""

from pathlib import Path

import pytest

from tests.integration.relayed import latest_numbers, spans_of, train, wait_for_relay
from trainspan.identity import trace_id_of
from trainspan.testing.otlp_sink import OtlpSink, attributes_of


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> OtlpSink:
    """What came in of a loop without torch, and with misuse in it."""
    state = tmp_path_factory.mktemp("state")
    with OtlpSink("http/protobuf") as sink:
        more = {"TRAINSPAN_SESSION_TAG": "llama run 7", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
        for scenario in ("loop", "names"):
            environ = {**sink.environ, **more, "TRAINSPAN_RUN_ID": scenario}
            ended = train("spoken.py", scenario, state=state / scenario, environ=environ)
            assert ended.exit_code == 0, ended.stderr
        for scenario in ("loop", "names"):
            wait_for_relay(state / scenario)
    return sink


def test_named_phases_are_states_and_phases_of_their_own(sink: OtlpSink) -> None:
    """The user's words are where the user looks: in the account, and in the distribution of each phase."""
    states = latest_numbers(sink, "training.time")
    phases = {
        attributes_of(point.attributes)["training.phase"]
        for item in sink.metrics()
        if item.item.name == "training.phase.duration" and item.resource["training.run.id"] == "loop"
        for point in item.item.histogram.data_points
    }

    assert {state for _, state in states} >= {
        *("custom.tokenize", "custom.roll_out", "custom.score", "custom.other"),
        *("model_init", "validation", "data_wait", "productive"),
    }
    assert phases == {"data_wait", "forward", "other", "custom.roll_out", "custom.score"}


def test_what_was_too_much_is_counted(sink: OtlpSink) -> None:
    """A name for each item makes series without end: the rest is one, and somebody is told."""
    misuse = latest_numbers(sink, "trainspan.misuse")

    assert misuse == {(None, "names"): 9}


def test_event_is_a_log_record_of_its_step(sink: OtlpSink) -> None:
    """It leads to the trace of the step it happened in."""
    rewards = [item for item in sink.logs() if item.item.event_name == "reward"]

    assert [attributes_of(item.item.attributes) for item in rewards] == [
        {"mean": 0.5, "training.rank": 0, "training.step": step} for step in range(3)
    ]
    assert [item.item.severity_text for item in rewards] == ["INFO"] * 3
    traces = [item.item.trace_id.hex() for item in rewards]
    assert traces == [f"{trace_id_of('loop', 0, 'step', step):032x}" for step in range(3)]


def test_what_is_configured_is_on_the_process_and_tags_on_everything(sink: OtlpSink) -> None:
    """Runs are compared by their tag, in every query of every backend."""
    spans = [span for span in spans_of(sink) if span.resource["training.run.id"] == "loop"]
    (process,) = (span for span in spans if span.name == "training.process")
    (told,) = (item for item in sink.logs() if "training.global_batch_size" in attributes_of(item.item.attributes))

    assert process.attributes["training.global_batch_size"] == 8
    assert process.attributes["training.baseline"] is False
    assert process.attributes["training.target.steps"] == 103
    tags = {"training.session_tag": "llama run 7", "training.perf_tag": "8b", "training.tag.team": "vision"}
    assert all(tags.items() <= span.resource.items() for span in spans)
    assert told.item.event_name == "training.configured"


def test_total_that_somebody_else_keeps_is_a_counter(sink: OtlpSink) -> None:
    """A backend rates it; the last step's is in it, which is asked for at the end."""
    assert latest_numbers(sink, "training.counter") == {(0, "retries"): 3}
    assert latest_numbers(sink, "training.scalar") == {}


def test_step_has_its_number_in_the_run(sink: OtlpSink) -> None:
    """A job that goes on from step 100 is looked for at step 100."""
    numbers = [
        (span.attributes["training.step"], span.attributes["training.global_step"])
        for span in spans_of(sink)
        if span.name == "training.rank_step" and span.resource["training.run.id"] == "loop"
    ]

    assert sorted(numbers) == [(0, 100), (1, 101), (2, 102)]


def test_spans_and_metrics_are_exported_as_wished(tmp_path: Path) -> None:
    """Who pays by the span or the series says which ones; what holds others stays, so that none hangs below nothing."""
    chosen = {
        "TRAINSPAN_SPANS_ALLOW": "training.custom.*, training.validation, training.step",
        "TRAINSPAN_SPANS_DENY": "*.score,*.export",
        "TRAINSPAN_SPANS_EVERY": "2",
        "TRAINSPAN_METRICS_DENY": "training.phase.*",
    }
    with OtlpSink("http/protobuf") as sink:
        ended = train("spoken.py", "loop", state=tmp_path, environ={**sink.environ, **chosen})
        wait_for_relay(tmp_path)

    spans = spans_of(sink)
    ids = {span.span for span in spans}
    assert ended.exit_code == 0, ended.stderr
    assert {span.name for span in spans} == {
        *("training.attempt", "training.process", "training.init", "training.validation"),
        *("training.step", "training.rank_step", "training.custom.roll_out"),
    }
    assert all(span.parent in ids for span in spans if span.parent)
    steps = [span for span in spans if span.name == "training.step"]
    reasons = [(step.attributes["training.step"], step.attributes["training.sampled.reason"]) for step in steps]
    assert reasons == [(0, "every"), (2, "every")]
    metrics = {item.item.name for item in sink.metrics()}
    assert "training.step.duration" in metrics
    assert "training.phase.duration" not in metrics


def test_validation_that_the_script_tells_is_one_span(tmp_path: Path) -> None:
    """The relay makes one of forwards without gradients, too, where nobody says what they are."""
    with OtlpSink("http/protobuf") as sink:
        ended = train("spoken_torch.py", "around", str(tmp_path / "m.pt"), state=tmp_path, environ=sink.environ)
        wait_for_relay(tmp_path)

    told = [span for span in spans_of(sink) if span.name == "training.validation"]
    assert ended.exit_code == 0, ended.stderr
    assert [span.attributes["training.validation.iterations"] for span in told] == [2]
