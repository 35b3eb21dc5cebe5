"""`opentelemetry-instrument torchrun …`: the same traces as with our own switch, and the script's spans inside them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.instrumented import LAUNCHER, Instrumented
from tests.integration.relayed import (
    REPOSITORY,
    SCRIPTS,
    Ended,
    SpanSeen,
    by_trace,
    command_line,
    run_folder,
    spans_of,
    train,
    wait_for_relay,
)
from trainspan.identity import span_id_of, trace_id_of
from trainspan.testing.otlp_sink import Fault, OtlpSink

STEPS = 8
RUN = {"TRAINSPAN_RUN_ID": "spans"}
HERE = {"PYTHONPATH": str(REPOSITORY)}
ALL = {"OTEL_TRACES_SAMPLER": "always_on"}


class Outcome(NamedTuple):
    """One run of `spans.py` on two ranks, and what came of it."""

    ended: Ended
    ours: list[SpanSeen]
    users: list[SpanSeen]

    def of_rank(self, rank: int) -> dict[str, Any]:
        """The line that a rank printed."""
        (line,) = (line for line in self.ended.lines if line["rank"] == rank)
        return line


def outcome_of(ended: Ended, sink: OtlpSink) -> Outcome:
    """The run that has ended, with its spans parted."""
    spans = spans_of(sink)
    ours = [span for span in spans if span.name.startswith("training.")]
    return Outcome(ended, ours, [span for span in spans if span not in ours])


def rank_step(rank: int, number: int) -> tuple[str, str]:
    """(trace, span) of one rank's part of a step."""
    ids = trace_id_of("spans", 0, "step", number), span_id_of("spans", 0, "step", number, "rank", rank)
    return f"{ids[0]:032x}", f"{ids[1]:016x}"


def process(rank: int) -> tuple[str, str]:
    """(trace, span) of a rank's process."""
    ids = trace_id_of("spans", 0, "attempt"), span_id_of("spans", 0, "attempt", "rank", rank)
    return f"{ids[0]:032x}", f"{ids[1]:016x}"


def places(users: list[SpanSeen], name: str) -> dict[tuple[int, int | None], tuple[str, str]]:
    """(trace, parent) of the spans of this name, by rank and step."""
    found = [span for span in users if span.name == name]
    by_place = {(span.attributes["training.rank"], span.attributes.get("training.step")): span for span in found}
    assert len(by_place) == len(found)
    return {place: (span.trace, span.parent) for place, span in by_place.items()}


def no_parent_is_missing(outcome: Outcome) -> bool:
    """Whether every span below another one came with that one."""
    spans = {(span.trace, span.span) for span in (*outcome.ours, *outcome.users)}
    return all(not span.parent or (span.trace, span.parent) in spans for span in (*outcome.ours, *outcome.users))


@pytest.fixture(scope="module")
def instrumented(tmp_path_factory: pytest.TempPathFactory) -> Instrumented:
    """Where `opentelemetry-instrument` finds us."""
    return Instrumented(tmp_path_factory.mktemp("instrumented"))


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The script with TRAINSPAN_ENABLED=1 and no more: its own spans come to nothing."""
    state = tmp_path_factory.mktemp("switched")
    with OtlpSink() as sink:
        ended = train("spans.py", "spawn", state=state, environ={**sink.environ, **HERE, **RUN, **ALL}, ranks=2)
        wait_for_relay(state)
        return outcome_of(ended, sink)


@pytest.fixture(scope="module", params=["by-itself", "with-the-switch-too"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, instrumented: Instrumented
) -> Iterator[Outcome]:
    """The same under `opentelemetry-instrument torchrun`."""
    state = tmp_path_factory.mktemp("both")
    switch = {"TRAINSPAN_ENABLED": "1"} if request.param == "with-the-switch-too" else {}
    with OtlpSink() as sink:
        environ = {**sink.environ, **RUN, **ALL, **switch}
        ended = instrumented.torchrun("spans.py", "spawn", state=state, environ=environ)
        wait_for_relay(state)
        yield outcome_of(ended, sink)


def test_traces_are_the_same_as_with_the_switch(switched: Outcome, both: Outcome) -> None:
    """Whoever has `opentelemetry-instrument` in their launch script must get no less, and nothing twice."""

    def shape(outcome: Outcome) -> Counter[tuple[Any, ...]]:
        # What is told of the beginning is named by its time; a model that is made in no time is not told.
        ids = {s.span: "" for s in outcome.ours if s.name.startswith(("training.init.", "training.launch"))}
        return Counter(
            (s.trace, ids.get(s.span, s.span), s.parent, s.name, s.attributes.get("training.rank"), s.error)
            for s in outcome.ours
            if s.name != "training.init.model"
        )

    assert (switched.ended.exit_code, both.ended.exit_code) == (0, 0), both.ended.stderr
    assert len(switched.ours) > 2 * STEPS
    assert shape(both) == shape(switched)


def test_spans_of_the_script_are_children_of_the_step_they_happen_in(both: Outcome) -> None:
    """Why was this step slow? The script's own words for what it did, inside the step, name the answer."""
    iterations, inner = places(both.users, "iteration"), places(both.users, "inner")

    steps = [(rank, number) for rank in (0, 1) for number in range(STEPS)]
    own = {(span.attributes["training.rank"], span.attributes["training.step"]): span for span in both.users
           if span.name == "iteration"}  # fmt: skip
    assert iterations == {step: rank_step(*step) for step in steps}
    assert inner == {step: (own[step].trace, own[step].span) for step in steps}
    assert all(span.attributes["user.number"] == number for (_, number), span in own.items())
    assert {span.resource["training.rank"] for span in both.users if span.attributes["training.rank"] == 1} == {1}
    assert no_parent_is_missing(both)


def test_what_is_before_and_after_the_steps_belongs_to_the_process(both: Outcome) -> None:
    """Nobody exports a step that never ends: a span below it would hang in the air."""
    before, after = places(both.users, "prepare"), places(both.users, "evaluate")

    inside = [span for span in both.users if span.name == "batch"]
    evaluations = {span.span for span in both.users if span.name == "evaluate"}
    assert before == after == {(0, None): process(0), (1, None): process(1)}
    assert {span.parent for span in inside} == evaluations
    assert {span.trace for span in inside} == {process(0)[0]}


def test_current_span_is_that_of_the_running_step(both: Outcome) -> None:
    """What reads it (a logger, a client that calls another service) must find the step, as the script itself does."""
    for rank in (0, 1):
        seen = [tuple(place) for place in both.of_rank(rank)["seen"]]

        steps = [(f"step {number}", *rank_step(rank, number)) for number in range(STEPS)]
        assert seen == [("start", *process(rank)), *steps]


def test_training_comes_to_the_same(switched: Outcome, both: Outcome) -> None:
    """Stock OpenTelemetry draws its ids from the script's own random stream."""
    drawn = ("weights", "random", "numpy", "torch")

    for rank in (0, 1):
        without, with_spans = switched.of_rank(rank), both.of_rank(rank)
        assert {name: with_spans[name] for name in drawn} == {name: without[name] for name in drawn}


def test_sdk_is_in_the_ranks_alone(both: Outcome, instrumented: Instrumented) -> None:
    """Each helper process of torch would pay for an SDK at its start, and for a dead collector at its end."""
    assert both.ended.exit_code == 0

    found = instrumented.processes()

    with_sdk = [process for process in found if process.sdk or process.provider != "ProxyTracerProvider"]
    helpers = [process for process in found if process not in with_sdk]
    assert all(process.argv[1].endswith("spans.py") and process.rank in ("0", "1") for process in with_sdk)
    assert {process.provider for process in with_sdk} == {"TracerProvider"}
    assert not any(process.torch for process in found)
    for helper in (LAUNCHER[-1], "multiprocessing.spawn", "multiprocessing.resource_tracker"):
        assert any(helper in " ".join(process.argv) for process in helpers), helper
    # The relay is no part of the script: nothing of the environment's instrumentation reaches it.
    assert not any("trainspan.relay" in " ".join(process.argv) for process in found)


def test_failed_step_shows_what_the_script_was_doing(tmp_path: Path, instrumented: Instrumented) -> None:
    """The step in which an exception ends a rank is traced whatever was sampled; the script's spans belong to it."""
    with OtlpSink() as sink:
        ended = instrumented.torchrun("spans.py", "raise", state=tmp_path, environ={**sink.environ, **RUN})
        wait_for_relay(tmp_path)
        outcome = outcome_of(ended, sink)

    last = [span for span in outcome.users if span.attributes.get("training.step") == STEPS - 1]
    # Both ranks raise; the launcher may end the slower one before it has.
    raised = {span.attributes["training.rank"] for span in last}
    iterations = places(outcome.users, "iteration")
    assert ended.exit_code != 0
    assert raised
    assert {span.name for span in last} == {"fetch", "iteration", "inner"}
    assert all(iterations[(rank, STEPS - 1)] == rank_step(rank, STEPS - 1) for rank in raised)
    # By default the first five steps are sampled; what happened in the others is not kept.
    assert {number for _, number in iterations} == {0, 1, 2, 3, 4, STEPS - 1}
    assert no_parent_is_missing(outcome)


def test_silent_collector_does_not_hold_up_the_end(tmp_path: Path, instrumented: Instrumented) -> None:
    """The SDK's own processor waits for its endpoint: a job that has ended would keep its GPUs."""
    environ = {**RUN, "TRAINSPAN_DIR": str(tmp_path), "OTEL_EXPORTER_OTLP_TIMEOUT": "60000"}
    with OtlpSink() as sink:
        sink.fault = Fault.SILENT
        command = ("python", str(SCRIPTS / "spans.py"), "plain")
        ended = instrumented.run(*command, environ={**environ, **sink.environ})
        sink.fault = Fault.NONE
        wait_for_relay(tmp_path)
        replayed = command_line("replay", environ={**environ, **sink.environ})
        outcome = outcome_of(ended, sink)

    # Two seconds, and what a busy machine makes of them; the exporter's timeout is a minute.
    assert ended.at_s - ended.lines[0]["done_s"] < 30
    assert (ended.exit_code, replayed) == (0, 0)
    # Nothing was lost: it was on disk before it was sent.
    assert sorted(places(outcome.users, "iteration")) == [(0, number) for number in range(5)]
    assert places(outcome.users, "evaluate") == {(0, None): process(0)}
    assert no_parent_is_missing(outcome)


def test_without_an_endpoint_spans_are_in_the_run_folder(tmp_path: Path, instrumented: Instrumented) -> None:
    """A first try needs no collector; what it shows must not be half of it."""
    environ = {"TRAINSPAN_DIR": str(tmp_path)}

    ended = instrumented.run("python", str(SCRIPTS / "spans.py"), "plain", environ=environ)

    wait_for_relay(tmp_path)
    texts = [path.read_text() for path in run_folder(tmp_path).glob("traces*.jsonl")]
    run = run_folder(tmp_path).name
    assert ended.exit_code == 0
    assert len(texts) == 2
    assert sum('"name":"evaluate"' in text for text in texts) == 1
    # Nobody named this run beforehand: whose spans they are was learnt when it began.
    assert all(f'"stringValue":"{run}"' in text for text in texts)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_the_script_starts_follow_their_steps(
    tmp_path: Path, instrumented: Instrumented, method: str
) -> None:
    """`mp.spawn` and notebooks: these processes become ranks long after they have begun."""
    environ = {**RUN, "TRAINSPAN_DIR": str(tmp_path)}
    with OtlpSink() as sink:
        command = ("python", str(SCRIPTS / "spans.py"), f"launch-{method}")
        ended = instrumented.run(*command, environ={**environ, **sink.environ})
        wait_for_relay(tmp_path)
        outcome = outcome_of(ended, sink)

    steps = [(rank, number) for rank in (0, 1) for number in range(5)]
    assert ended.exit_code == 0, ended.stderr
    assert places(outcome.users, "iteration") == {step: rank_step(*step) for step in steps}
    assert places(outcome.users, "evaluate") == {(0, None): process(0), (1, None): process(1)}
    assert no_parent_is_missing(outcome)


def test_forked_worker_keeps_its_spans_to_itself(tmp_path: Path, instrumented: Instrumented) -> None:
    """It prepares batches for steps to come, and ends without a chance to deliver: half of its spans would mislead."""
    with OtlpSink() as sink:
        ended = instrumented.torchrun("spans.py", "fork", state=tmp_path, environ={**sink.environ, **RUN})
        wait_for_relay(tmp_path)
        outcome = outcome_of(ended, sink)

    assert ended.exit_code == 0, ended.stderr
    assert Counter(span.name for span in outcome.users) == {
        "prepare": 2, "iteration": 10, "inner": 10, "evaluate": 2, "batch": 2
    }  # fmt: skip


def test_own_provider_follows_with_one_call(tmp_path: Path) -> None:
    """Who has set OpenTelemetry up in code keeps that, and gets the same parents."""
    with OtlpSink() as sink:
        ended = train("spans.py", "own", state=tmp_path, environ={**sink.environ, **HERE, **RUN}, ranks=2)
        wait_for_relay(tmp_path)
        outcome = outcome_of(ended, sink)

    ids = {(s.trace, s.parent) for s in outcome.users if s.name == "iteration"}
    assert ended.exit_code == 0, ended.stderr
    assert ids == {rank_step(rank, number) for rank in (0, 1) for number in range(5)}


NOT_TRAINING = """
import sys
from opentelemetry import trace
with trace.get_tracer("user").start_as_current_span("request") as span:
    print('{"valid": %d}' % span.get_span_context().is_valid)
"""


def test_script_that_does_not_train_delivers_its_spans(tmp_path: Path, instrumented: Instrumented) -> None:
    """A preprocessing script of the same job makes no run; a parent that never comes would be told of in red."""
    script = tmp_path / "prepare.py"
    script.write_text(NOT_TRAINING)
    environ = {**RUN, "TRAINSPAN_DIR": str(tmp_path / "state")}
    with OtlpSink() as sink:
        ended = instrumented.run("python", str(script), environ={**environ, **sink.environ})
        outcome = outcome_of(ended, sink)

    assert ended.exit_code == 0, ended.stderr
    assert [(span.name, span.parent) for span in outcome.users] == [("request", "")]
    assert not (tmp_path / "state").exists()


OTHER = """
import os
from opentelemetry.instrumentation.distro import BaseDistro
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry import trace

class Distro(BaseDistro):
    def _configure(self, **kwargs):
        os.environ["OTHER_DISTRO"] = "configured"

class OtherProvider(TracerProvider):
    pass

class Configurator:
    def configure(self, **kwargs):
        trace.set_tracer_provider(OtherProvider(shutdown_on_exit=False))
"""
OTHER_ENTRY_POINTS = """
[opentelemetry_distro]
distro = other:Distro
[opentelemetry_configurator]
configurator = other:Configurator
"""


@pytest.mark.parametrize(
    ("environ", "provider"),
    [
        ({}, "OtherProvider"),
        ({"OTEL_PYTHON_DISTRO": "trainspan_distro", "OTEL_PYTHON_CONFIGURATOR": "trainspan_configurator"},
         "TracerProvider"),
        ({"RANK": "0", "TORCHELASTIC_RUN_ID": "bert-42", "OTEL_PYTHON_CONFIGURATOR": "configurator"}, "OtherProvider"),
    ],
    ids=["service", "asked-for-ours", "asked-for-theirs"],
)  # fmt: skip
def test_other_distro_keeps_its_services(tmp_path: Path, environ: dict[str, str], provider: str) -> None:
    """To install trainspan beside a service must not take the service's telemetry away."""
    # Both orders in which the loader may come across us: by the names of the directories.
    told = []
    for name in ("aaa_other", "zzz_other"):
        folder = tmp_path / name
        folder.mkdir()
        instrumented = Instrumented(folder, {name: (OTHER_ENTRY_POINTS, {"other": OTHER})})
        script = folder / "serve.py"
        script.write_text("import os; print('{\"distro\": \"%s\"}' % os.environ.get('OTHER_DISTRO'))")

        ended = instrumented.run("python", str(script), environ={**environ, "TRAINSPAN_DIR": str(tmp_path)})

        assert ended.exit_code == 0, ended.stderr
        told.append((ended.lines[0]["distro"], instrumented.processes()[0].provider))
    expected = "None" if "OTEL_PYTHON_DISTRO" in environ else "configured"
    if "OTEL_PYTHON_CONFIGURATOR" not in environ or "OTEL_PYTHON_DISTRO" in environ:
        assert {distro for distro, _ in told} == {expected}
    assert {found for _, found in told} == {provider}


def test_switch_set_to_off_wins(tmp_path: Path, instrumented: Instrumented) -> None:
    """Somebody whose job misbehaves switches us off first; the launch script may be out of their reach."""
    environ = {"TRAINSPAN_ENABLED": "0", "TRAINSPAN_DIR": str(tmp_path)}

    ended = instrumented.run("python", str(SCRIPTS / "spans.py"), "plain", environ=environ)

    assert ended.exit_code == 0, ended.stderr
    assert not (tmp_path / "runs").exists()


def test_traces_by_trace_hold_both_ranks(both: Outcome) -> None:
    """Side by side under one root, with the script's own spans on either side."""
    traces = by_trace([*both.ours, *both.users])

    for number in range(STEPS):
        trace = traces[rank_step(0, number)[0]]
        assert {span.attributes["training.rank"] for span in trace if span.name == "iteration"} == {0, 1}
        assert [span.name for span in trace if not span.parent] == ["training.step"]
