"""Telemetry of a rank, through the shipped configurations, into the real Jaeger and Prometheus and out again."""

from pathlib import Path

import pytest

from tests.backends import stack as stacks
from tests.backends import telemetry
from tests.backends.stack import Stack
from trainspan import names

pytestmark = pytest.mark.backends("that telemetry gets through the shipped configurations into Jaeger and Prometheus")


def test_a_step_arrives_in_jaeger_as_it_was_sent(stack: Stack) -> None:
    """Names, nesting, times and the rank's identity are what a person looks for in a trace."""
    run = telemetry.new_run()
    forward, step = telemetry.step_spans(run, "share")

    assert telemetry.send_spans(stack.otlp_http, (forward, step))
    trace = stack.trace(step.context.trace_id, spans=2)

    found = {span["operationName"]: span for span in trace["spans"]}
    assert set(found) == {names.SPAN_RANK_STEP, names.Phase.FORWARD.span}
    assert [reference["spanID"] for reference in found[names.Phase.FORWARD.span]["references"]] == [
        found[names.SPAN_RANK_STEP]["spanID"]
    ]
    assert step.start_time is not None
    assert step.end_time is not None
    assert found[names.SPAN_RANK_STEP]["startTime"] == step.start_time // 1000
    assert found[names.SPAN_RANK_STEP]["duration"] == (step.end_time - step.start_time) // 1000
    assert all(not span["warnings"] for span in trace["spans"])
    process = {tag["key"]: tag["value"] for tag in trace["processes"]["p1"]["tags"]}
    assert (process[names.RUN_ID], process[names.RANK]) == (run, 3)


def test_metrics_arrive_in_prometheus_under_their_names(stack: Stack) -> None:
    """A dashboard asks by name and rank: a lost label would add up the ranks of all runs."""
    run = telemetry.new_run()

    telemetry.send_metrics(stack.otlp_http, run)
    waiting = stack.series(f'training_time_seconds_total{{training_run_id="{run}",training_state="data_wait"}}')

    assert waiting[0]["value"][1] == "2"
    assert waiting[0]["metric"] == {
        "__name__": "training_time_seconds_total",
        "job": "training",
        "instance": f"{run}/3",
        "training_run_id": run,
        "training_attempt": "0",
        "training_rank": "3",
        "training_world_size": "4",
        "training_state": "data_wait",
    }
    assert stack.series(f'training_goodput_ratio{{training_run_id="{run}"}}')[0]["value"][1] == "0.86"
    bucket = f'training_step_duration_seconds_bucket{{training_run_id="{run}",le="0.5"}}'
    assert stack.series(bucket)[0]["value"][1] == "1"


def test_a_counter_counts_from_its_start(stack: Stack) -> None:
    """A run shorter than one export would have no increase at all, if Prometheus did not know that it began at zero."""
    run = telemetry.new_run()

    telemetry.send_metrics(stack.otlp_http, run)
    whole = stack.series(f'last_over_time(training_time_seconds_total{{training_run_id="{run}"}}[5m])')
    increase = stack.series(f'sum(increase(training_time_seconds_total{{training_run_id="{run}"}}[5m])) > 0')

    assert sum(float(one["value"][1]) for one in whole) == 14.5
    assert float(increase[0]["value"][1]) >= 14.5


def test_what_the_collector_took_survives_it(own_stack: Stack) -> None:
    """Queues are on disk: a backend that is away and a collector that is restarted meanwhile lose nothing."""
    spans = telemetry.step_spans(telemetry.new_run(), "share")
    stacks.run("down", own_stack.folder, "--only", "jaeger")

    assert telemetry.send_spans(own_stack.otlp_http, spans)
    stacks.run("down", own_stack.folder, "--only", "collector")
    again = stacks.up(own_stack.folder)

    assert again == own_stack
    trace = again.trace(spans[0].context.trace_id, spans=2)
    assert len(trace["spans"]) == 2


def test_mutual_tls_lets_in_only_who_is_known(tls_stack: Stack) -> None:
    """`tls.yaml` on top must refuse both a client without a certificate and one with somebody else's."""
    tls = tls_stack.folder / "tls"
    spans = telemetry.step_spans(telemetry.new_run(), "share")

    taken = {
        who: telemetry.send_spans(tls_stack.otlp_http, spans, tls=tls, client=who) for who in ("", "stranger", "client")
    }

    assert taken == {"": False, "stranger": False, "client": True}


def test_down_ends_what_up_started_and_nothing_else(tmp_path: Path, stack: Stack) -> None:
    """Others run backends on this machine too: what goes must be what this folder's `up` started."""
    stacks.up(tmp_path)
    before = stacks.running(tmp_path)

    result = stacks.run("down", tmp_path)

    assert result.stderr == "backends: ended collector, prometheus, jaeger\n"
    assert before == {"jaeger", "prometheus", "collector"}
    assert stacks.running(tmp_path) == set()
    assert stacks.running(stack.folder) == before
    assert stacks.get_json(f"http://127.0.0.1:{stacks.status(tmp_path)['ports']['jaeger_query']}/api/services") is None
