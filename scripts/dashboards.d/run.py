"""Dashboard *Run*: is it healthy, how far is it, what is lost to what."""

from panels import ONE_RANK, ONE_RUN, Dashboard, Panel, Query, stat

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
