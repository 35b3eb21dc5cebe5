"""Whatever a rank or a launcher has scribbled into its recording, the relay goes on, and loses no batch over it."""

import contextlib
import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainspan.recording import layout
from trainspan.recording.writer import RecordingWriter
from trainspan.relay.process import Relay
from trainspan.role import Role
from trainspan.testing.builders import identity_of, marks_of

Event = dict[str, Any]

HUGE = 10**400
"""JSON knows no bound; a float ends at 1.8e308."""

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, HUGE, -HUGE, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64),
    *(float("nan"), float("inf"), -float("inf"), 1e308, 0.5, "", "x", "\x1b[31m", "a" * 5000, "\0"),
    *([], [1], [[1, 2]], [[1, HUGE]], ["x"], [None], [-1], [1 << 62], {}, {"": 1}),
    *({"a": 1}, {"a": HUGE}, {"a": float("nan")}, {"a": [1]}, {"a": {"b": 1}}, {"loss": HUGE}, {"loss": True}),
)
"""Values that no field expects, but for some."""

SOUND = {
    "kind": ("save", "load", 1),
    "name": ("training.custom.x", "training.init.model"),
    "state": ("compile", "model_init"),
    "operation": ("rendezvous", "start_workers"),
    "group": ("g",),
    "op": ("all_reduce",),
    "step": (0, 3),
    "from_step": (0,),
    "attempt": (0, 1),
    "reason": ("failure",),
}
"""Values that lead further in."""

OF_RANKS = {
    "exception": ("type", "message", "stack"),
    "allocator": ("reserved_bytes", "active_bytes", "allocated_bytes", "allocated_peak_bytes", "retries", "ooms"),
    "out_of_memory": ("step", "phase"),
    "facts": ("attributes",),
    "compiled": ("compilations", "recompilations", "graph_breaks"),
    "ddp": ("forward_compute_ns", "bucket_bytes"),
    "checkpoint": (
        *("kind", "file", "step", "start_ns", "end_ns", "blocking", "ok", "staging", "run_step"),
        *("bytes", "directory_bytes"),
    ),
    "span": ("name", "start_ns", "end_ns", "ok", "attributes", "state"),
    "place": ("attributes",),
    "import": ("start_ns", "end_ns"),
    "phase_name": ("number", "name"),
    "user_event": ("name", "step", "attributes"),
    "configured": ("values", "tags"),
    "misuse": ("kind", "count"),
    "device": ("uuid", "index", "pci", "model", "visible"),
    "device_events": ("share", "from_step"),
    "device_step": ("step", "times_ns", "offsets_ns"),
    "device_dropped": ("step",),
    "collective_group": ("group", "label", "ranks"),
    "collective_kind": ("kind", "bytes", "group", "op"),
    "collectives": ("counts",),
    "progress": ("step", "global_step", "epoch"),
    "scalars": ("values", "counters", "dropped", "at_step"),
    "work": ("samples", "tokens"),
    "flops": ("step", "flops"),
    "stopped": ("signal",),
}
OF_LAUNCHERS = {
    "launch_begins": ("operation", "attempt", "start_ns", "node", "nodes"),
    "launch": ("operation", "attempt", "start_ns", "end_ns", "ok", "node", "nodes", "error"),
    "launch_failed": ("error",),
    "worker_ended": ("pid", "exit_code", "signal", "attempt"),
    "worker_stopped": ("pid", "signal"),
    "launch_restart": ("attempt", "reason"),
    "launch_metrics": ("values",),
    "launch_event": ("name", "attributes"),
    "place": ("attributes",),
}


def relayed(events: Sequence[Event], role: str = Role.RANK, summary: str = "") -> str:
    """What the relay logs of a recording with these events and a few steps.

    Args:
        events: in the log of the recording.
        role: of who recorded.
        summary: of the run, as the relay finds it; empty: it finds none.
    """
    identity = identity_of(0, world_size=1)._replace(role=role)
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stderr(said):
        folder, recordings = Path(place, "run"), Path(place, "recordings")
        folder.mkdir(mode=0o700)
        recordings.mkdir(mode=0o700)
        if summary:
            Path(folder, "summary.json").write_text(summary)
        writer = RecordingWriter.create(recordings, identity, layout.CAPACITY_MIN, time.monotonic_ns())
        for event in events:
            writer.append_event({"ts": time.monotonic_ns(), **event})
        marks = marks_of(5, start_ns=time.monotonic_ns())
        for place_of_word, word in enumerate(marks, layout.HEADER_BYTES // layout.WORD_BYTES):
            writer.words[place_of_word] = word
        environ = {"TRAINSPAN_DIR": place, "OTEL_METRIC_EXPORT_INTERVAL": "1"}
        relay = Relay(recordings, folder, environ, own=writer.path, live=False)
        try:
            for _ in range(3):
                relay.look()
                time.sleep(0.001)
            writer.close(time.monotonic_ns() + 1_000_000_000)
            relay.look()
        finally:
            relay.close()
    return said.getvalue()


def events_of(fields_by_name: dict[str, tuple[str, ...]]) -> st.SearchStrategy[list[Event]]:
    """Events of these names, whose fields hold something or are missing."""

    def of(name: str) -> st.SearchStrategy[Event]:
        values = {
            field: st.sampled_from(SOUND[field]) | st.sampled_from(ODD) if field in SOUND else st.sampled_from(ODD)
            for field in fields_by_name[name]
        }
        return st.fixed_dictionaries({"event": st.just(name)}, optional=values)

    return st.lists(st.sampled_from(sorted(fields_by_name)).flatmap(of), max_size=8)


@settings(max_examples=40)
@given(events_of(OF_RANKS))
@example([{"event": "checkpoint", "kind": [], "file": "x", "step": 1, "start_ns": 1, "end_ns": 2}])
@example([{"event": "scalars", "values": {"loss": HUGE}}])
@example([{"event": "allocator", "reserved_bytes": 1 << 64, "retries": True}])
@example([{"event": "misuse", "kind": "x", "count": 1 << 64}])
@example([{"event": "out_of_memory", "phase": "forward", "step": 1 << 63}])
@example([{"event": "import", "start_ns": -1, "end_ns": HUGE}])
@example([{"event": "device_events", "share": float("nan"), "from_step": 0}])
@example(
    [{"event": "collective_kind", "kind": kind, "bytes": 1, "group": "g", "op": "all_reduce"} for kind in range(1, 9)]
    + [{"event": "collectives", "counts": [[kind, (1 << 62) - 1] for kind in range(1, 9)]}]
)
def test_no_event_of_a_rank_ends_the_relay_or_loses_a_batch(events: list[Event]) -> None:
    """One bit that flips in one rank's log must not take the telemetry of the node with it."""
    assert relayed(events) == ""


@settings(max_examples=20)
@given(events_of(OF_LAUNCHERS))
@example([{"event": "launch", "operation": [], "attempt": {}, "start_ns": 1, "end_ns": 2}])
def test_no_event_of_a_launcher_ends_the_relay_or_loses_a_batch(events: list[Event]) -> None:
    """It lives as long as the job."""
    assert relayed(events, Role.AGENT) == ""


@pytest.mark.parametrize("summary", ["[" * 200_000, "{", '{"schema": "trainspan.summary", "version": 1}'])
def test_summary_that_cannot_be_read_is_kept_aside(summary: str) -> None:
    """Somebody may want to repair it, and the run goes on."""
    said = relayed([], summary=summary)

    assert said.count("\n") == 1
    assert "it is kept as summary.damaged" in said
