"""Dashboard *Run*: is it healthy, how far is it, what is lost to what."""

from panels import ONE_RANK, ONE_RUN, Dashboard, Panel, Query, highest, lowest, stat

CHECKPOINT = "(training_checkpoint_kind, training_checkpoint_part, training_checkpoint_outcome)"

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
            "Goodput of the time shown",
            "The same of the window chosen above, whichever it is. Below the number beside it: it has become worse.",
            f'sum(increase(training_time_seconds_total{{{ONE_RUN},training_state="productive"}}[$__range]))'
            f" / (sum(increase(training_time_seconds_total{{{ONE_RUN}}}[$__range])) > 0)",
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
            "Attempts after the first, by why: after a failure, or planned. The step anatomy's failed steps say where "
            "they ended; three failures in an hour raise an alert.",
            # Each attempt tells them anew, those before it included.
            f"max by (training_restart_reason) (training_restarts_total{{{ONE_RUN}}})",
            width=8,
            legend="{{training_restart_reason}}",
        ),
        stat(
            "Step of the run",
            "Over all attempts, as the script or its framework counts. Empty: it does not say.",
            f"max(training_progress_global_step{{{ONE_RUN}}})",
            width=5,
        ),
        stat(
            "Epoch",
            "As the framework counts. Empty: there is no framework, or it has none.",
            f"max(training_progress_epoch{{{ONE_RUN}}})",
            width=5,
        ),
        stat(
            "Checkpoint",
            "Largest file of a checkpoint that a rank has saved. It grows with the model and the optimizer's state.",
            f"max(training_checkpoint_size_bytes{{{ONE_RUN}}})",
            "bytes",
            width=6,
        ),
        Panel(
            "Where the time goes",
            "timeseries",
            "Share of all ranks' time in each state over the last five minutes. Whatever grows beside `productive` is "
            "what to work on.",
            (
                Query(
                    f"sum by (training_state) (job:training_time:rate_5m{{{ONE_RUN}}})"
                    f" / on () group_left () (sum(job:training_time:rate_5m{{{ONE_RUN}}}) > 0)",
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
            "Ranks that wait for each other have one line. A line above the others is a rank that drifts away; of many "
            "ranks the slowest are shown.",
            (
                Query(
                    highest(f"rank:training_step_duration_seconds:mean_5m{{{ONE_RANK}}}"),
                    "rank {{training_rank}} node {{training_node_rank}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Ranks that stand still",
            "timeseries",
            "For how long a rank has given no sign, with the phase it is in. Empty: all go on. Of several the highest "
            "line stood first, and is likely the one that the others wait for.",
            (
                Query(
                    highest(f"training_stall_age_seconds{{{ONE_RANK}}}"),
                    "rank {{training_rank}} node {{training_node_rank}} in {{training_phase}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Launcher",
            "bargauge",
            "Time the launchers of all nodes took so far, by what they did. A long rendezvous: a node comes late, or "
            "restarts again and again; a long stop: workers that do not hear SIGTERM. Empty: not started by torchrun.",
            (
                Query(
                    f"sum by (training_launch_operation) (training_launch_time_seconds_total{{{ONE_RUN}}})",
                    "{{training_launch_operation}}",
                ),
            ),
            "s",
        ),
        Panel(
            "torchelastic's metrics",
            "timeseries",
            "What torchelastic, or who uses its metrics, last put there, in its own units. Of many those that are "
            "highest are shown.",
            (Query(highest(f"training_launch_metric{{{ONE_RUN}}}"), "{{training_launch_metric_name}}"),),
        ),
        Panel(
            "Progress",
            "timeseries",
            "Number of the last step completed by each rank. Flat: no progress. A drop: steps are done again after a "
            "restart; save checkpoints more often if drops are large. Of many ranks those that are behind are shown.",
            (Query(lowest(f"training_progress_step{{{ONE_RANK}}}"), "rank {{training_rank}}"),),
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
                Query(lowest(f"training_mfu_ratio{{{ONE_RANK}}}"), "rank {{training_rank}}"),
                Query(f"job:training_mfu:ratio_5m{{{ONE_RUN}}}", "mean"),
            ),
            "percentunit",
        ),
        Panel(
            "What is logged",
            "timeseries",
            "Loss, learning rate and whatever else the script or its framework logs, of each rank by itself. A line "
            "that ends is no number any more; one that leaves the others is a rank to look at. Of many ranks the "
            "highest are shown.",
            (
                Query(
                    highest(f"training_scalar{{{ONE_RANK}}}", " by (training_scalar_name)"),
                    "{{training_scalar_name}} rank {{training_rank}}",
                ),
            ),
        ),
        Panel(
            "What is counted",
            "timeseries",
            "What the script counts by itself (`trainspan.counter`), of all ranks together, a second.",
            (
                Query(
                    f"sum by (training_counter_name) (rate(training_counter_total{{{ONE_RUN}}}[$__rate_interval]))",
                    "{{training_counter_name}}",
                ),
            ),
        ),
        Panel(
            "Saving and loading checkpoints",
            "bargauge",
            "Mean time of a call in the time shown. `blocking` and `staging` hold training up, `background` does not. "
            "A `failure` is a checkpoint that is not there when it is needed: see the attempt's trace.",
            (
                Query(
                    f"sum by {CHECKPOINT} (increase(training_checkpoint_duration_seconds_sum{{{ONE_RUN}}}[$__range]))"
                    f" / (sum by {CHECKPOINT} "
                    f"(increase(training_checkpoint_duration_seconds_count{{{ONE_RUN}}}[$__range])) > 0)",
                    "{{training_checkpoint_kind}} {{training_checkpoint_part}} {{training_checkpoint_outcome}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Calls and values that were not taken",
            "timeseries",
            "Zero is right. Calls of the API that made no sense, by what was wrong with them (see docs/api.md): their "
            "phases or steps are not in the account. Values dropped: too many names were logged, or what is no number.",
            (
                Query(
                    f"sum by (kind) (increase(trainspan_misuse_total{{{ONE_RUN}}}[$__rate_interval]))",
                    "calls: {{kind}}",
                ),
                Query(f"sum(increase(trainspan_scalars_dropped_total{{{ONE_RUN}}}[$__rate_interval]))", "values"),
            ),
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
            "dropped: the spool was full. Attempts refused: see the relay's log or `trainspan doctor`. Items left "
            "out: of a batch that was taken; the log has the endpoint's words. Spans cut: a trace was larger than a "
            "backend takes.",
            tuple(
                Query(f"sum(increase({metric}{{{ONE_RUN}}}[$__rate_interval]))", legend)
                for metric, legend in (
                    ("trainspan_marks_lost_total", "marks lost"),
                    ("trainspan_events_dropped_total", "events dropped"),
                    ("trainspan_recording_errors_total", "recording errors"),
                    ("trainspan_spool_dropped_total", "batches dropped"),
                    ("trainspan_export_failures_total", "attempts refused"),
                    ("trainspan_export_rejected_total", "items left out"),
                    ("trainspan_spans_dropped_total", "spans cut"),
                )
            ),
        ),
        Panel(
            "Lag of the relays",
            "timeseries",
            "Age of the oldest mark the relay's last look took. Rising toward the ring's length in time: the relay is "
            "starved of CPU, and marks will be lost.",
            (Query(highest(f"trainspan_relay_lag_seconds{{{ONE_RUN}}}"), "node {{training_node_rank}}"),),
            "s",
        ),
        Panel(
            "CPU of the relays",
            "timeseries",
            "Share of one core that the relay of a node takes. It grows with the steps a second of the node's ranks.",
            tuple(
                Query(
                    f"{function}(rate(trainspan_relay_cpu_time_seconds_total{{{ONE_RUN}}}[$__rate_interval]))", legend
                )
                for function, legend in (("max", "the busiest"), ("avg", "mean"))
            ),
            "percentunit",
        ),
        Panel(
            "Marks",
            "timeseries",
            "What all ranks recorded and the relays read, a second. Zero while steps go on cannot be; zero and no "
            "steps: training hangs, see `Since the last step`.",
            (Query(f"sum(rate(trainspan_marks_total{{{ONE_RUN}}}[$__rate_interval]))", "marks"),),
        ),
    ),
)
