"""What each dashboard shows: panels, what they ask Prometheus and Jaeger for, and what to do about what they show."""

from collections.abc import Sequence
from typing import NamedTuple


class Query(NamedTuple):
    """PromQL and the legend of its series."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel. `kind`: of Grafana's panels, or `traces`; `width` of 24 columns, `height` in rows of 30 pixels."""

    title: str
    kind: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 12
    height: int = 8
    stacked: bool = False
    maximum: float | None = None


class Dashboard(NamedTuple):
    """One dashboard; `variables` are names of VARIABLES."""

    uid: str
    title: str
    description: str
    variables: Sequence[str]
    panels: Sequence[Panel]
    since: str = "now-6h"


ONE_RUN = 'training_run_id="$run"'
ONE_GPU = f'{ONE_RUN},hw_type="gpu"'
GPU_NAME = "node {{training_node_rank}} {{hw_name}}"
ONE_RANK = 'training_run_id="$run",training_rank=~"$rank"'


class Variable(NamedTuple):
    """A choice at the top of a dashboard; `regex` keeps a part of each value."""

    label: str
    query: str
    description: str
    many: bool = False
    regex: str = ""
    hidden: bool = False


VARIABLES = {
    "run": Variable("run", "label_values(training_time_seconds_total, training_run_id)", "`training.run.id`"),
    "rank": Variable(
        "rank",
        f"label_values(training_time_seconds_total{{{ONE_RUN}}}, training_rank)",
        "Ranks to show; where ranks of a node share a histogram, choose All.",
        many=True,
    ),
    # `job` is `service.namespace/service.name`, Jaeger knows the name only.
    "service": Variable(
        "service",
        f"label_values(training_time_seconds_total{{{ONE_RUN}}}, job)",
        "`service.name`, for Jaeger",
        regex="/([^/]+)$/",
        hidden=True,
    ),
}


def stat(title: str, description: str, expr: str, unit: str = "short", width: int = 4) -> Panel:
    """One number."""
    return Panel(title, "stat", description, (Query(expr),), unit, width, 4)


RUN = Dashboard(
    "trainspan-run",
    "Run",
    "Is this run healthy, how far is it, and what is lost to what.",
    ("run", "rank"),
    (
        stat(
            "Goodput",
            "Productive share of all time of the run so far, restarts included. Below 90 %: see what is lost to what.",
            f'avg(training_goodput_ratio{{{ONE_RUN},training_window="run"}})',
            "percentunit",
        ),
        stat(
            "Last step",
            "Number of the last step completed, by the rank that is ahead. It falls after a restart from a checkpoint.",
            f"max(training_progress_step{{{ONE_RUN}}})",
        ),
        stat(
            "Steps per second",
            "Pace of the last five minutes. If it falls, see the step time by rank below.",
            f"job:training_steps:rate_5m{{{ONE_RUN}}}",
        ),
        stat(
            "Since the last step",
            "Age of the youngest completed step of all ranks. Far above one step time: training hangs, "
            "or is in a checkpoint or a validation.",
            f"min(training_last_step_age_seconds{{{ONE_RUN}}})",
            "s",
        ),
        stat(
            "Ranks heard of",
            "Ranks that sent their steps. Fewer than the world size: look on the nodes that are missing with "
            "`trainspan doctor`.",
            f"count(count by (training_rank) (training_steps_total{{{ONE_RUN}}}))",
        ),
        stat(
            "Restarts",
            "Attempts after the first. The step anatomy's failed steps say where they ended.",
            f"max(training_restarts_total{{{ONE_RUN}}})",
        ),
        Panel(
            "Where the time goes",
            "timeseries",
            "Share of all ranks' time in each state over the last five minutes. Whatever grows beside `productive` is "
            "what to work on.",
            (
                Query(
                    f"avg by (training_state) (rank:training_time:share_5m{{{ONE_RUN}}})",
                    "{{training_state}}",
                ),
            ),
            "percentunit",
            stacked=True,
            maximum=1,
        ),
        Panel(
            "What is lost to what",
            "bargauge",
            "Rank time charged to each state but `productive`, summed over all ranks, in the time shown. "
            "Work on the longest bar first.",
            (
                Query(
                    f"sort_desc(sum by (training_state) (increase("
                    f'training_time_seconds_total{{{ONE_RUN},training_state!="productive"}}[$__range])))',
                    "{{training_state}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Goodput over time",
            "timeseries",
            "Productive share of the last five minutes, hour and day. The hour far below the day raises an alert.",
            tuple(Query(f"job:training_goodput:ratio_{w}{{{ONE_RUN}}}", w) for w in ("5m", "1h", "1d")),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Mean step time by rank",
            "timeseries",
            "Ranks that wait for each other have one line. A line above the others is a rank that drifts away.",
            (
                Query(
                    f"rank:training_step_duration_seconds:mean_5m{{{ONE_RANK}}}",
                    "rank {{training_rank}} node {{training_node_rank}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Progress",
            "timeseries",
            "Number of the last step completed by each rank. Flat: no progress. A drop: steps are done again after a "
            "restart; save checkpoints more often if drops are large.",
            (Query(f"training_progress_step{{{ONE_RANK}}}", "rank {{training_rank}}"),),
        ),
        Panel(
            "Samples and tokens a second",
            "timeseries",
            "What all ranks work through, over the last five minutes, from the shapes of their batches. Falling while "
            "steps a second stay: batches have become smaller, or shorter.",
            (
                Query(f"job:training_samples:rate_5m{{{ONE_RUN}}}", "samples"),
                Query(f"job:training_tokens:rate_5m{{{ONE_RUN}}}", "tokens"),
            ),
        ),
        Panel(
            "FLOP/s",
            "timeseries",
            "Of the model, on all devices together, where the FLOPs of a token or a sample are known "
            "(TRAINSPAN_FLOPS_PER_TOKEN).",
            (Query(f"job:training_flops:rate_5m{{{ONE_RUN}}}", "all ranks"),),
            "flops",
        ),
        Panel(
            "MFU by rank",
            "timeseries",
            "Share of what the device could do (TRAINSPAN_PEAK_FLOPS) that the newest 1024 steps did. Low: see what a "
            "step is made of. One rank below the others: see its GPU.",
            (
                Query(f"training_mfu_ratio{{{ONE_RANK}}}", "rank {{training_rank}}"),
                Query(f"job:training_mfu:ratio_5m{{{ONE_RUN}}}", "mean"),
            ),
            "percentunit",
        ),
        Panel(
            "What is logged",
            "timeseries",
            "Loss, learning rate and whatever else the script or its framework logs, of each rank by itself. A line "
            "that ends is no number any more; one that leaves the others is a rank to look at.",
            (Query(f"training_scalar{{{ONE_RANK}}}", "{{training_scalar_name}} rank {{training_rank}}"),),
        ),
        Panel(
            "Telemetry on its way",
            "timeseries",
            "Bytes that wait on disk for the endpoint. Growing: the endpoint is away or slow; nothing is lost "
            "until the spool is full.",
            (Query(f"sum by (signal) (trainspan_spool_size_bytes{{{ONE_RUN}}})", "{{signal}}"),),
            "bytes",
        ),
        Panel(
            "Telemetry lost or refused",
            "timeseries",
            "Zero is right. Marks or events lost: give the relay more CPU or raise TRAINSPAN_RING_MARKS. Batches "
            "dropped: the spool was full. Failures: see the relay's log or `trainspan doctor`.",
            tuple(
                Query(f"sum(increase({metric}{{{ONE_RUN}}}[$__rate_interval]))", legend)
                for metric, legend in (
                    ("trainspan_marks_lost_total", "marks lost"),
                    ("trainspan_events_dropped_total", "events dropped"),
                    ("trainspan_recording_errors_total", "recording errors"),
                    ("trainspan_spool_dropped_total", "batches dropped"),
                    ("trainspan_export_failures_total", "attempts refused"),
                )
            ),
        ),
        Panel(
            "Relay",
            "timeseries",
            "Age of the oldest mark the relay's last look took. Rising toward the ring's length in time: the relay is "
            "starved of CPU, and marks will be lost.",
            (Query(f"max by (training_node_rank) (trainspan_relay_lag_seconds{{{ONE_RUN}}})", "node lag"),),
            "s",
        ),
    ),
)

STEP = Dashboard(
    "trainspan-step",
    "Step anatomy",
    "What a step is made of, on which rank, and the traces of the steps that were slow.",
    ("run", "rank", "service"),
    (
        Panel(
            "Mean step by phase",
            "timeseries",
            "Host time of each phase in a mean step, over the ranks chosen. The tallest layer is where a step's time "
            "goes; on a GPU the host's share of `backward` and `optimizer` is launching and waiting.",
            (
                Query(
                    f"sum by (training_phase) (rate(training_phase_duration_seconds_sum"
                    f'{{{ONE_RANK},training_clock="host"}}[$__rate_interval]))'
                    f" / ignoring (training_phase) group_left () "
                    f"(sum(rate(training_step_duration_seconds_count{{{ONE_RANK}}}[$__rate_interval])) > 0)",
                    "{{training_phase}}",
                ),
            ),
            "s",
            stacked=True,
        ),
        Panel(
            "Phases by rank",
            "bargauge",
            "Mean host time of a phase by rank, in the time shown. A rank long in data_wait, forward or optimizer "
            "makes its peers long in backward: look at that rank, not at them.",
            (
                Query(
                    f"sort_desc(sum by (training_rank, training_node_rank, training_phase) "
                    f'(increase(training_phase_duration_seconds_sum{{{ONE_RANK},training_clock="host"}}[$__range]))'
                    f" / on (training_rank, training_node_rank) group_left () "
                    f"(sum by (training_rank, training_node_rank) "
                    f"(increase(training_step_duration_seconds_count{{{ONE_RANK}}}[$__range])) > 0))",
                    "{{training_phase}} rank {{training_rank}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Step time, quantiles",
            "timeseries",
            "Median and slowest steps of the ranks chosen. p99 far above p50: single steps are slow; open their traces "
            "below. Both high: see the phases.",
            tuple(
                Query(
                    f"histogram_quantile({q}, sum by (le) "
                    f"(rate(training_step_duration_seconds_bucket{{{ONE_RANK}}}[$__rate_interval])))",
                    f"p{q * 100:g}",
                )
                for q in (0.5, 0.9, 0.99)
            ),
            "s",
        ),
        Panel(
            "Straggler score",
            "timeseries",
            "How much longer a rank's own time makes every step, as a share of the mean step. 0 is usual; above 0.1 "
            "for 15 minutes raises an alert.",
            (
                Query(
                    f"rank:training_straggler:score_5m{{{ONE_RANK}}}",
                    "rank {{training_rank}} node {{training_node_rank}}",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Step-time deviation",
            "timeseries",
            "A rank's mean step less that of the median rank, in s. Away from 0: ranks do not wait for each other, or "
            "drift apart.",
            (
                Query(
                    f"rank:training_step_deviation:seconds_5m{{{ONE_RANK}}}",
                    "rank {{training_rank}} node {{training_node_rank}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Above the ideal step",
            "timeseries",
            "Median of the newest 100 steps less the ideal step time. Rising: the run is slower than it can be.",
            (Query(f"training_step_deviation_seconds{{{ONE_RANK}}}", "rank {{training_rank}}"),),
            "s",
        ),
        Panel(
            "Slow steps",
            "traces",
            "Steps with a trace because they were slow. Follow the trace id: one trace holds the step on all ranks; "
            "look for the phase that is long on one rank only.",
            (Query('training.run.id="$run" training.sampled.reason="slow"'),),
        ),
        Panel(
            "All sampled steps",
            "traces",
            "Steps with a trace, for whatever reason; a usual one to compare a slow one with.",
            (Query('training.run.id="$run"'),),
        ),
    ),
)

GPU = Dashboard(
    "trainspan-gpu",
    "GPU & energy",
    "What the devices do, what they draw, and whether they are well: those of the nodes of one run.",
    ("run", "rank"),
    (
        stat(
            "Energy of the work",
            "Drawn by the GPUs while the ranks trained, in the time shown. Idle GPUs and the time before the first "
            "step are not in it.",
            f"sum(increase(training_energy_joules_total{{{ONE_RUN}}}[$__range]))",
            "joule",
            width=5,
        ),
        stat(
            "Energy of a step",
            "Of all ranks together, over the last five minutes. A change without a change of the step time: another "
            "clock, another precision, or a GPU that is throttled.",
            f"job:training_energy:joules_per_step_5m{{{ONE_RUN}}}",
            "joule",
            width=5,
        ),
        stat(
            "Energy of a token",
            "Of all ranks together, over the last five minutes; padding counts. It compares runs whose batches differ.",
            f"job:training_energy:joules_per_token_5m{{{ONE_RUN}}}",
            "joule",
            width=5,
        ),
        stat(
            "Carbon",
            "The energy of the work times TRAINSPAN_CARBON_G_PER_KWH, in grams. Empty: the job was not told that "
            "number.",
            f"sum(increase(training_carbon_grams_total{{{ONE_RUN}}}[$__range]))",
            width=4,
        ),
        stat(
            "GPUs that have failed",
            "Zero is right. Such a GPU answers nothing: take its node out, and look at its XID errors below.",
            f'count(hw_status{{{ONE_RUN},hw_type="gpu",hw_state="failed"}} == 1) or vector(0)',
            width=5,
        ),
        Panel(
            "Power by phase",
            "timeseries",
            "What the GPUs of all ranks draw in each phase, on average. Much in `data_wait` or `other`: the devices "
            "are kept waiting at full price.",
            (
                Query(
                    f"sum by (training_phase) (rate(training_energy_joules_total{{{ONE_RANK}}}[$__rate_interval]))",
                    "{{training_phase}}",
                ),
            ),
            "watt",
            stacked=True,
        ),
        Panel(
            "Device time by phase",
            "timeseries",
            "Seconds of device work in each phase, a second. The sum far below 1: the device waits, see data_wait.",
            (
                Query(
                    f"sum by (training_phase) (rate(training_phase_duration_seconds_sum"
                    f'{{{ONE_RANK},training_clock="device"}}[$__rate_interval]))'
                    f" / on () group_left () count(count by (training_rank) (training_steps_total{{{ONE_RANK}}}))",
                    "{{training_phase}}",
                ),
            ),
            "percentunit",
            stacked=True,
        ),
        Panel(
            "Allocator memory",
            "timeseries",
            "Memory of torch's allocator by rank and state. `reserved` far above `allocated`: fragmentation, try "
            "expandable_segments. Ever growing: a tensor is kept over steps.",
            (
                Query(
                    f"training_allocator_memory_usage_bytes{{{ONE_RANK}}}",
                    "rank {{training_rank}} {{training_allocator_memory_state}}",
                ),
                Query(f"training_allocator_memory_peak_bytes{{{ONE_RANK}}}", "rank {{training_rank}} peak"),
            ),
            "bytes",
        ),
        Panel(
            "Allocator retries and out of memory",
            "timeseries",
            "Zero is right. Retries flush the cache and stall the device: the batch is at the edge of the memory. Out "
            "of memory: make the batch or the activations smaller.",
            (
                Query(
                    f"sum by (training_rank) (increase(training_allocator_retries_total{{{ONE_RANK}}}"
                    f"[$__rate_interval]))",
                    "rank {{training_rank}} retries",
                ),
                Query(
                    f"sum by (training_rank) (increase(training_allocator_ooms_total{{{ONE_RANK}}}[$__rate_interval]))",
                    "rank {{training_rank}} out of memory",
                ),
            ),
        ),
        Panel(
            "GPU utilisation",
            "timeseries",
            "Share of time in which any kernel ran. It says that the GPU was not idle, not that it was used well: a "
            "hung collective shows 100 %.",
            (Query(f'hw_gpu_utilization_ratio{{{ONE_GPU},hw_gpu_task="general"}}', GPU_NAME),),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Memory in use",
            "timeseries",
            "Share of each GPU's memory, by whomever it is used. Above the allocator's reserve: the context, NCCL's "
            "buffers, or another process.",
            (Query(f"hw_gpu_memory_utilization_ratio{{{ONE_GPU}}}", GPU_NAME),),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Power",
            "timeseries",
            "What each board draws. Low in the middle of a run: the GPU waits. One lower than its peers: throttled or "
            "starved.",
            (Query(f"hw_power_watts{{{ONE_GPU}}}", GPU_NAME),),
            "watt",
        ),
        Panel(
            "Energy",
            "bargauge",
            "What each board has drawn in the time shown, whatever for.",
            (Query(f"increase(hw_energy_joules_total{{{ONE_GPU}}}[$__range])", GPU_NAME),),
            "joule",
        ),
        Panel(
            "Temperature",
            "timeseries",
            "Of each GPU and of its memory. One hotter than its peers will be throttled: see to its cooling.",
            (Query(f"hw_temperature_celsius{{{ONE_GPU}}}", GPU_NAME + " {{hw_sensor_location}}"),),
            "celsius",
        ),
        Panel(
            "Clock of the multiprocessors",
            "timeseries",
            "One that is slower than its peers makes every step of all ranks longer; the reason is beside it.",
            (Query(f'hw_gpu_speed_hertz{{{ONE_GPU},hw_gpu_clock="sm"}}', GPU_NAME),),
            "hertz",
        ),
        Panel(
            "Slowed by",
            "timeseries",
            "GPUs slowed for each reason. `sw_power_cap` is usual under load; `hw_thermal`, `hw_slowdown` and "
            "`hw_power_brake` are cooling or power supply.",
            (
                Query(
                    f"sum by (hw_gpu_throttle_reason) (hw_gpu_throttled_ratio{{{ONE_GPU}}})",
                    "{{hw_gpu_throttle_reason}}",
                ),
            ),
        ),
        Panel(
            "Links",
            "timeseries",
            "Bytes a second over PCIe and NVLink, of all GPUs together. PCIe near its limit: copies from the host, or "
            "collectives that do not go over NVLink.",
            (
                Query(
                    f"sum by (hw_gpu_link, network_io_direction) (rate(hw_gpu_io_bytes_total{{{ONE_GPU}}}"
                    f"[$__rate_interval]))",
                    "{{hw_gpu_link}} {{network_io_direction}}",
                ),
            ),
            "Bps",
        ),
        Panel(
            "Errors",
            "timeseries",
            "Since the relay began. Corrected ones are usual, uncorrected ones are not. The number of an XID: look it "
            "up in NVIDIA's catalogue; 48, 63, 64, 79, 94 and 95 ask for the node to be drained.",
            (Query(f"hw_errors_total{{{ONE_GPU}}}", GPU_NAME + " {{error_type}}"),),
        ),
    ),
)

BY_RUN = "by (job, training_run_id)"
FLEET = Dashboard(
    "trainspan-fleet",
    "Fleet",
    "All runs, side by side.",
    (),
    (
        Panel(
            "Runs",
            "table",
            "One line for each run seen in the time shown. Sort by goodput or by what it loses, and follow the run's "
            "name to its dashboard.",
            (
                Query(
                    f'avg {BY_RUN} (last_over_time(training_goodput_ratio{{training_window="run"}}[$__range]))',
                    "Goodput",
                ),
                Query(f"max {BY_RUN} (last_over_time(training_progress_step[$__range]))", "Last step"),
                Query(
                    f"min {BY_RUN} (last_over_time(training_last_step_age_seconds[$__range]))", "Since last step (s)"
                ),
                Query(
                    "count by (job, training_run_id) "
                    "(count by (job, training_run_id, training_rank) (last_over_time(training_steps_total[$__range])))",
                    "Ranks",
                ),
                Query(
                    f'sum {BY_RUN} (increase(training_time_seconds_total{{training_state!="productive"}}[$__range]))',
                    "Rank seconds lost",
                ),
            ),
            width=24,
            height=10,
        ),
        Panel(
            "Goodput by run",
            "timeseries",
            "Productive share of the last hour. A run that falls away from its own past is worth a look.",
            (Query("job:training_goodput:ratio_1h", "{{training_run_id}}"),),
            "percentunit",
            maximum=1,
        ),
        Panel(
            "Steps per second by run",
            "timeseries",
            "Pace of the last five minutes. A line that ends: the run has ended or its telemetry has.",
            (Query("job:training_steps:rate_5m", "{{training_run_id}}"),),
        ),
        Panel(
            "What the fleet loses to what",
            "timeseries",
            "Ranks in each state but `productive`, on average. The widest band is what pays most to work on.",
            (
                Query(
                    "sum by (training_state) "
                    '(rate(training_time_seconds_total{training_state!="productive"}[$__rate_interval]))',
                    "{{training_state}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Worst straggler by run",
            "timeseries",
            "The highest straggler score of each run: how much longer one rank makes every step of all.",
            (Query(f"max {BY_RUN} (rank:training_straggler:score_5m)", "{{training_run_id}}"),),
            "percentunit",
        ),
    ),
    since="now-24h",
)
DASHBOARDS = (RUN, STEP, GPU, FLEET)
