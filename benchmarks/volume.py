"""What a node's telemetry amounts to: series, bytes on the wire and on disk, spans, and the relay's CPU and memory.

Real relays, one process each, serve local ranks that record as ranks on GPUs do (`local_ranks.py`), read the recorded
machine of eight H100s, and send gzip over OTLP/HTTP to a server that counts. What is reported is of the settled part of
the run: an export of metrics is the last whole one, CPU is that of the time after the relay has started, in which it
exports six times as often as by default.

The long run is a relay that is handed a million steps of one rank as fast as it takes them, by a clock of their own,
with a checkpoint every thousand and a slow one now and then: what of it grows?
"""

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from trainspan.testing.otlp_sink import OtlpSink, Received, attributes_of

BENCHMARKS: Final = Path(__file__).resolve().parent
MACHINE: Final = BENCHMARKS.parent / "tests" / "data" / "nvml" / "h100x8.json"
PYNVML: Final = """\
import os, sys, trainspan.testing.fake_nvml as fake
sys.modules[__name__] = fake.FakeNvml.from_file(os.environ["RECORDED_MACHINE"])
"""
SMALL_WORLD: Final = 64
LARGE_WORLD: Final = 16_000
NODES: Final = (
    *((ranks, SMALL_WORLD) for ranks in (1, 2, 4, 8)),
    *((8, world_size) for world_size in (256, 2_048, LARGE_WORLD)),
    (16, LARGE_WORLD),
)
QUICK_NODES: Final = ((2, SMALL_WORLD), (2, LARGE_WORLD))
"""Ranks of the node, and of its job. Beyond 64 ranks those of a node share their histograms."""

KNOBS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    "without training.other": (SMALL_WORLD, {"TRAINSPAN_SPANS_DENY": "training.other"}),
    "rank_step alone": (SMALL_WORLD, {"TRAINSPAN_SPANS_ALLOW": "training.rank_step"}),
    "without training.phase.duration": (LARGE_WORLD, {"TRAINSPAN_METRICS_DENY": "training.phase.duration"}),
    "exponential histograms": (
        LARGE_WORLD,
        {"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "base2_exponential_bucket_histogram"},
    ),
}
"""What settings change: ranks of the job, and the settings."""

INTERVAL_S: Final = 10.0
"""Between two exports of metrics here, so that a minute has some; their size does not depend on it."""

SHORT_S: Final = 33.0
"""Of a run that need not be long: three exports."""

SEGMENTS_PER_HOUR: Final = 60
SHARE: Final = 0.01
LONG_STEPS: Final = 1_000_000


class Export(NamedTuple):
    """One whole export of metrics. Bytes of protobuf: `plain` before, `gzipped` after compression, as on the wire."""

    requests: list[Any]
    plain_bytes: int
    gzipped_bytes: int


class Usage(NamedTuple):
    """What a process has used."""

    cpu_s: float
    rss_mib: float


def environ_of(state: Path, more: dict[str, str], interval_s: float = INTERVAL_S) -> dict[str, str]:
    """Of the ranks, and so of their relay. The GPUs have ids of their own: another relay may speak for those."""
    folder = state / "machine"
    folder.mkdir()
    (folder / "pynvml.py").write_text(PYNVML)
    machine = folder / MACHINE.name
    machine.write_text(re.sub(r'"GPU-[0-9a-f]{8}', f'"GPU-{os.urandom(4).hex()}', MACHINE.read_text()))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TRAINSPAN_", "OTEL_"))},
        "TRAINSPAN_DIR": str(state),
        "PYTHONPATH": str(folder),
        "RECORDED_MACHINE": str(machine),
        "OTEL_SERVICE_NAME": "pretraining",
        "OTEL_METRIC_EXPORT_INTERVAL": str(round(interval_s * 1000)),
        **more,
    }


class Node:
    """Local ranks in one process, and the relay they have started."""

    def __init__(self, state: Path, job: dict[str, Any], environ: dict[str, str]):
        self.folder = state / "runs" / "volume"
        self._process = subprocess.Popen(
            [sys.executable, str(BENCHMARKS / "local_ranks.py"), json.dumps(job)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.recordings = Path(self._said()["recording_dir"])
        self.relay = _relay_pid(self.recordings / "relay.lock")

    def _said(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit(f"bench: the ranks ended with exit code {self._process.wait(10)}")
        said: dict[str, Any] = json.loads(line)
        return said

    def usage(self) -> Usage:
        """Of the relay, now."""
        return usage_of(self.relay)

    def trained(self) -> None:
        """Wait until the ranks have taken their steps."""
        self._said()

    def close(self) -> None:
        """Let the ranks end, and wait until the relay has left."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(60)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{self.relay}").exists():
            if time.monotonic() > deadline:
                raise SystemExit("bench: the relay has not left within 60 s")
            time.sleep(0.05)


def _relay_pid(lock: Path) -> int:
    for _ in range(300):
        time.sleep(0.1)
        if lock.exists() and (text := lock.read_text()):
            return int(text)
    raise SystemExit(f"bench: no relay has taken {lock} within 30 s")


def usage_of(pid: int | str) -> Usage:
    """Of one process. Source: proc_pid_stat(5), proc_pid_status(5)."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    status = Path(f"/proc/{pid}/status").read_text()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Usage(cpu_s, int(status.split("VmRSS:")[1].split()[0]) / 1024)


def size_of(folder: Path, pattern: str) -> int:
    """Bytes of the files of these names below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


# What came in.


def last_export(received: Iterable[Received]) -> Export:
    """The first with everything in it: of several requests, they hold points of one time."""
    exports: dict[int, list[Received]] = defaultdict(list)
    for one in received:
        exports[max(point.time_unix_nano for _, _, point in points_of([one.request]))].append(one)
    # Not the newest: at their end ranks have no age of their last step, and one state more.
    requests = exports[max(sorted(exports), key=lambda at: _points_in(exports[at]))]
    wire = sum(int(one.headers["content-length"]) for one in requests)
    return Export([one.request for one in requests], sum(one.request.ByteSize() for one in requests), wire)


def _points_in(received: Iterable[Received]) -> int:
    return sum(1 for _ in points_of([one.request for one in received]))


def points_of(requests: Iterable[Any]) -> Iterable[tuple[Any, Any, Any]]:
    """(resource metrics, metric, point) of every point."""
    for request in requests:
        for of_resource in request.resource_metrics:
            for of_scope in of_resource.scope_metrics:
                for metric in of_scope.metrics:
                    for point in getattr(metric, metric.WhichOneof("data")).data_points:
                        yield of_resource, metric, point


def series_of(requests: Sequence[Any]) -> dict[str, int]:
    """Series in Prometheus, by who has them: `rank`, all ranks of this node; `node`, the rest of it; `gpu`, all GPUs.

    A histogram is a series for each bucket, one for the sum and one for the count; a resource is one, `target_info`.
    """
    seen: dict[tuple[Any, ...], tuple[str, int]] = {}
    for of_resource, metric, point in points_of(requests):
        resource = attributes_of(of_resource.resource.attributes)
        own = resource["service.instance.id"]
        whose = "rank" if "training.rank" in resource else "gpu" if metric.name.startswith("hw.") else "node"
        buckets = len(point.bucket_counts) + 2 if metric.WhichOneof("data") == "histogram" else 1
        seen[(own, metric.name, *sorted(attributes_of(point.attributes).items()))] = whose, buckets
        seen[(own,)] = "rank" if "training.rank" in resource else "node", 1
    counts = {"rank": 0, "node": 0, "gpu": 0}
    for whose, count in seen.values():
        counts[whose] += count
    return counts


def bytes_by_resource(requests: Iterable[Any]) -> dict[str, int]:
    """Bytes of protobuf of all ranks (`rank`), and of the node itself (`node`)."""
    found = {"rank": 0, "node": 0}
    for request in requests:
        for of_resource in request.resource_metrics:
            is_rank = "training.rank" in attributes_of(of_resource.resource.attributes)
            found["rank" if is_rank else "node"] += of_resource.ByteSize()
    return found


def steps_of(received: Iterable[Received]) -> dict[str, float]:
    """Of one sampled step: spans and bytes of the node, plain and on the wire; from requests that hold it alone."""
    spans, plain, wire = [], [], []
    for one in received:
        held = [span for of in one.request.resource_spans for s in of.scope_spans for span in s.spans]
        roots = [span for span in held if span.name == "training.step"]
        if len(roots) == 1 and {span.trace_id for span in held} == {roots[0].trace_id}:
            spans.append(len(held))
            plain.append(one.request.ByteSize())
            wire.append(int(one.headers["content-length"]))
    if not spans:
        raise SystemExit("bench: no request held one sampled step alone; give the run more --seconds")
    return {
        "seen": len(spans),
        "spans": statistics.median(spans),
        "plain_bytes": statistics.median(plain),
        "gzipped_bytes": statistics.median(wire),
    }


def segment_bytes(received: Iterable[Received]) -> int:
    """Gzipped bytes of a request that holds one segment: one of rank 0 a minute."""
    for one in received:
        for of in one.request.resource_spans:
            for scope in of.scope_spans:
                for span in scope.spans:
                    if span.name == "training.segment":
                        alone = type(one.request)()
                        kept = alone.resource_spans.add()
                        kept.resource.CopyFrom(of.resource)
                        kept.scope_spans.add().spans.append(span)
                        return len(gzip.compress(alone.SerializeToString()))
    return 0


# One node.


def measure_node(
    ranks: int,
    world_size: int,
    step_s: float,
    seconds: float,
    extra: dict[str, str],
    interval_s: float = INTERVAL_S,
) -> dict[str, Any]:
    """What one node of that many ranks gives, from a run of `seconds` with three exports at least."""
    with tempfile.TemporaryDirectory() as name, OtlpSink() as sink:
        state = Path(name)
        state.chmod(0o700)
        given = {**sink.environ, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", **extra}
        job = {"ranks": ranks, "world_size": world_size, "step_s": step_s, "steps": round(seconds / step_s)}
        node = Node(state, job, environ_of(state, given, interval_s))
        time.sleep(max(seconds / 4, 3))  # the relay's start is not its work
        before, began_s = node.usage(), time.monotonic()
        node.trained()
        after, took_s = node.usage(), time.monotonic() - began_s
        recordings = {kind: size_of(node.recordings, f"*.{kind}") / ranks for kind in ("ring", "events")}
        node.close()
        metrics, traces, logs = (sink.received(signal) for signal in ("metrics", "traces", "logs"))
        export = last_export(metrics)
        rank_steps = ranks * took_s / step_s
        ledger = size_of(node.folder / "ledger", "*")
        return {
            "ranks": ranks,
            "world_size": world_size,
            "series": series_of(export.requests),
            "export": {
                "plain_bytes": export.plain_bytes,
                "gzipped_bytes": export.gzipped_bytes,
                **{f"{whose}_plain_bytes": size for whose, size in bytes_by_resource(export.requests).items()},
            },
            "step": steps_of(traces),
            "segment_gzipped_bytes": segment_bytes(traces),
            "log_records": len(sink.logs()),
            "log_bytes": sum(one.request.ByteSize() for one in logs),
            "relay": {
                "cpu_s_per_1000_rank_steps": (after.cpu_s - before.cpu_s) / rank_steps * 1000,
                "cores": (after.cpu_s - before.cpu_s) / took_s,
                "rss_mib": after.rss_mib,
            },
            "recording_bytes": recordings,
            "ledger_bytes_per_rank_step": ledger / (ranks * job["steps"]),
            "summary_bytes_per_rank": size_of(node.folder, "summary*.json") / ranks,
            "delivered_journal_bytes": size_of(node.folder, "*.jsonl"),
        }


def measure_kept(ranks: int, world_size: int, step_s: float, seconds: float) -> dict[str, Any]:
    """What a node without an endpoint keeps in its run folder, in bytes of an export, a sampled step, a log record."""
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        state.chmod(0o700)
        job = {"ranks": ranks, "world_size": world_size, "step_s": step_s, "steps": round(seconds / step_s)}
        node = Node(state, job, environ_of(state, {}))
        node.trained()
        node.close()
        metrics = [len(line) for line in (node.folder / "metrics.jsonl").read_bytes().splitlines()]
        traces = (node.folder / "traces.jsonl").read_bytes().splitlines()
        steps = [len(line) for line in traces if line.count(b'"training.step"') and b"training.process" not in line]
        return {"export_bytes": statistics.median(metrics), "step_bytes": statistics.median(steps) if steps else None}


# A long run.


def measure_long(steps: int, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """What a relay holds after more and more steps of one rank."""
    with tempfile.TemporaryDirectory() as name, OtlpSink() as sink:
        environ = environ_of(Path(name), {**sink.environ, "OTEL_METRIC_EXPORT_INTERVAL": "600000"})
        command = [sys.executable, str(BENCHMARKS / "long_run.py"), name, str(steps)]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
            rows = []
            for line in process.stdout or ():
                rows.append(json.loads(line))
                show(f"a long run: after {rows[-1]['steps']:,} steps")
        if process.returncode:
            raise SystemExit(f"bench: the long run ended with exit code {process.returncode}")
        export = last_export(sink.received("metrics"))
        rows[-1]["series"], rows[-1]["export_plain_bytes"] = (
            sum(series_of(export.requests).values()),
            export.plain_bytes,
        )
        return rows


# What is shown.


def traces_per_hour_bytes(node: dict[str, Any], step_s: float) -> float:
    """Gzipped, of a node: the fixed share of the steps, and a segment a minute. Slow steps are at most 60 more."""
    return 3600 / step_s * SHARE * node["step"]["gzipped_bytes"] + SEGMENTS_PER_HOUR * node["segment_gzipped_bytes"]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, with progress on stderr."""

    def show(text: str) -> None:
        print(f"bench: {text}", file=sys.stderr, flush=True)

    nodes = []
    for ranks, world_size in arguments.nodes:
        show(f"{ranks} ranks of {world_size:,}, {arguments.seconds:.0f} s")
        nodes.append(measure_node(ranks, world_size, arguments.step, arguments.seconds, {}, arguments.interval))
    knobs = {}
    for name, (world_size, environ) in KNOBS.items() if not arguments.quick else ():
        show(f"8 ranks of {world_size:,}, {name}")
        knobs[name] = measure_node(8, world_size, arguments.step, SHORT_S, environ)
    result: dict[str, Any] = {
        "python": sys.version.split()[0],
        "step_s": arguments.step,
        "seconds": arguments.seconds,
        "load": os.getloadavg()[0],
        "nodes": nodes,
        "knobs": knobs,
    }
    if not arguments.quick:
        show("8 ranks without an endpoint")
        result["kept"] = measure_kept(8, SMALL_WORLD, arguments.step, SHORT_S)
    if not (arguments.quick or arguments.no_long):
        result["long"] = measure_long(arguments.long_steps, show)
    return result


ROWS: Final[dict[str, Callable[[dict[str, Any]], float]]] = {
    "series of a rank": lambda node: node["series"]["rank"] / node["ranks"],
    "series of the node besides": lambda node: node["series"]["node"],
    "series of its 8 GPUs": lambda node: node["series"]["gpu"],
    "metrics: kB an export": lambda node: node["export"]["plain_bytes"] / 1e3,
    "metrics: kB an export, gzip": lambda node: node["export"]["gzipped_bytes"] / 1e3,
    "spans of a sampled step": lambda node: node["step"]["spans"],
    "traces: kB a sampled step": lambda node: node["step"]["plain_bytes"] / 1e3,
    "traces: kB a sampled step, gzip": lambda node: node["step"]["gzipped_bytes"] / 1e3,
    "traces: kB an hour, gzip, steps of 1 s": lambda node: traces_per_hour_bytes(node, 1.0) / 1e3,
    "traces: kB an hour, gzip, steps of 0.25 s": lambda node: traces_per_hour_bytes(node, 0.25) / 1e3,
    "log records of the run": lambda node: node["log_records"],
    "relay: CPU s for 1,000 rank-steps": lambda node: node["relay"]["cpu_s_per_1000_rank_steps"],
    "relay: % of a core": lambda node: 100 * node["relay"]["cores"],
    "relay: RSS, MiB": lambda node: node["relay"]["rss_mib"],
    "recording: MiB a rank": lambda node: node["recording_bytes"]["ring"] / (1 << 20),
    "run folder: summary, kB a rank": lambda node: node["summary_bytes_per_rank"] / 1e3,
}


def as_table(result: dict[str, Any]) -> str:
    """The result for a person."""
    nodes = result["nodes"]
    lines = [
        "Python {python}, steps of {step_s} s, {seconds:.0f} s each; load {load:.1f}".format(**result),
        "",
        f"{'ranks on the node':<44}" + "".join(f"{node['ranks']:>8}" for node in nodes),
        f"{'ranks of the job':<44}" + "".join(f"{node['world_size']:>8,}" for node in nodes),
        *(f"{name:<44}" + "".join(f"{_digits(value(node)):>8}" for node in nodes) for name, value in ROWS.items()),
        "",
        *(_of_kept(result[name]) for name in ("kept",) if name in result),
        *(_of_knob(name, node) for name, node in result["knobs"].items()),
        *(_of_long(row) for row in result.get("long", [])),
    ]
    return "\n".join(lines)


def _of_kept(kept: dict[str, float]) -> str:
    export, step = kept["export_bytes"] / 1e3, kept["step_bytes"] / 1e3
    return f"8 ranks of 64, without an endpoint: {export:.0f} kB an export and {step:.1f} kB a sampled step on disk"


def _of_knob(name: str, node: dict[str, Any]) -> str:
    export, step = node["export"]["gzipped_bytes"] / 1e3, node["step"]["gzipped_bytes"] / 1e3
    return (
        f"8 ranks of {node['world_size']:,}, {name}: {sum(node['series'].values())} series, {export:.1f} kB an export, "
        f"{node['step']['spans']:.0f} spans and {step:.1f} kB a sampled step, gzip"
    )


def _of_long(row: dict[str, Any]) -> str:
    return (
        f"after {row['steps']:>9,} steps of one rank: relay {row['rss_mib']:.0f} MiB, "
        f"{row['cpu_s_per_1000']:.2f} CPU s for 1,000, "
        f"ledger {row['ledger_bytes'] / 1e6:.2f} MB, other files {row['other_bytes'] / 1e6:.2f} MB"
    )


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _node(text: str) -> tuple[int, int]:
    ranks, world_size = map(int, text.split("/"))
    if not 0 < ranks <= world_size:
        raise ValueError(text)
    return ranks, world_size


def main() -> int:
    """Run the benchmark; prints a table, or JSON."""
    parser = argparse.ArgumentParser(prog="scripts/bench volume", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=_node, nargs="+", help="RANKS/WORLD each (default: 1/64 2/64 ... 16/16000)")
    parser.add_argument("--step", type=float, help="seconds of a step (default: 0.25)")
    parser.add_argument("--seconds", type=float, help="of each run (default: 65, which ends a segment)")
    parser.add_argument("--interval", type=float, help="seconds between exports of metrics (default: 10)")
    parser.add_argument("--no-long", action="store_true", help="leave out the long run")
    parser.add_argument("--long-steps", type=int, default=LONG_STEPS, help="of the long run (default: 1000000)")
    parser.add_argument("--quick", action="store_true", help="2 ranks of 64 and of 16,000, half a minute in all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    arguments.nodes = arguments.nodes or (QUICK_NODES if arguments.quick else NODES)
    arguments.step = arguments.step or (0.4 if arguments.quick else 0.25)
    arguments.interval = arguments.interval or (3.0 if arguments.quick else INTERVAL_S)
    arguments.seconds = arguments.seconds or (13.0 if arguments.quick else 65.0)
    if arguments.step <= 0 or arguments.interval < 1 or arguments.seconds < 3 * arguments.interval + 3:
        parser.error("--step needs more than 0, --interval at least 1, and --seconds three intervals and 3 s")
    if arguments.long_steps < 1000:
        parser.error("--long-steps needs at least 1000")
    result = run(arguments)
    print(json.dumps(result, indent=2) if arguments.json else as_table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
