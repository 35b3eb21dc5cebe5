"""Dashboard *Step anatomy*: what a step is made of, on which rank, and the traces of slow ones."""

from panels import MOST, ONE_RANK, Dashboard, Panel, Query, highest

COLLECTIVE = "(training_collective_op, training_collective_group)"

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
                    f"topk ({2 * MOST}, sum by (training_rank, training_node_rank, training_phase) "
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
                    highest(f"rank:training_straggler:score_5m{{{ONE_RANK}}}"),
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
                    highest(f"rank:training_step_deviation:seconds_5m{{{ONE_RANK}}}"),
                    "rank {{training_rank}} node {{training_node_rank}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Above the ideal step",
            "timeseries",
            "Median of the newest 100 steps less the ideal step time. Rising: the run is slower than it can be.",
            (Query(highest(f"training_step_deviation_seconds{{{ONE_RANK}}}"), "rank {{training_rank}}"),),
            "s",
        ),
        Panel(
            "In collectives, by rank",
            "bargauge",
            "Mean time of a step in the collectives that its script calls, in the time shown. The rank with the "
            "shortest bar is the one that the others wait for.",
            (
                Query(
                    f"bottomk ({2 * MOST}, sum by (training_rank, training_node_rank, training_collective_op) "
                    f"(increase(training_collective_duration_seconds_sum{{{ONE_RANK}}}[$__range]))"
                    f" / on (training_rank, training_node_rank) group_left () "
                    f"(sum by (training_rank, training_node_rank) "
                    f"(increase(training_steps_total{{{ONE_RANK}}}[$__range])) > 0))",
                    "{{training_collective_op}} rank {{training_rank}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Waiting in collectives",
            "timeseries",
            "Mean of what a rank spends in a collective beyond the one of its node that came last. High: ranks come at "
            "different times, and the straggler score says who is late.",
            (
                Query(
                    f"sum by {COLLECTIVE} (rate(training_collective_wait_seconds_sum{{{ONE_RANK}}}[$__rate_interval]))"
                    f" / (sum by {COLLECTIVE} "
                    f"(rate(training_collective_wait_seconds_count{{{ONE_RANK}}}[$__rate_interval])) > 0)",
                    "{{training_collective_op}} {{training_collective_group}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Bytes in collectives",
            "timeseries",
            "What the ranks chosen hand to collectives called from Python, a second. More bytes in the same step: "
            "another sharding, or a collective that is called more often than it has to be.",
            (
                Query(
                    f"sum by {COLLECTIVE} (rate(training_collective_size_bytes_sum{{{ONE_RANK}}}[$__rate_interval]))",
                    "{{training_collective_op}} {{training_collective_group}}",
                ),
            ),
            "Bps",
        ),
        Panel(
            "Reducer of DistributedDataParallel",
            "timeseries",
            "What it measured of an iteration, on average over the ranks chosen. `backward_comm` far above "
            "`backward_overlap`: communication is not hidden behind backward; try larger or smaller buckets.",
            (
                Query(
                    f"avg by (training_ddp_part) (training_ddp_duration_seconds{{{ONE_RANK}}})", "{{training_ddp_part}}"
                ),
            ),
            "s",
        ),
        Panel(
            "Gradient buckets of DistributedDataParallel",
            "timeseries",
            "Bytes of all buckets of a rank. It should be the gradients of the model; a change is a change of what is "
            "trained.",
            (Query(f"max(training_ddp_bucket_size_bytes{{{ONE_RANK}}})", "largest"),),
            "bytes",
        ),
        Panel(
            "Compilation and skipped steps",
            "timeseries",
            "Zero after the first steps is right. Recompilations that go on: see `training.compile.reason` in the "
            "attempt's trace. Steps skipped one after the other: gradients are not finite, and nothing is learned.",
            (
                Query(
                    f"sum by (training_compile_kind) "
                    f"(increase(training_compile_count_total{{{ONE_RANK}}}[$__rate_interval]))",
                    "{{training_compile_kind}}",
                ),
                Query(
                    f"sum(increase(training_compile_graph_breaks_total{{{ONE_RANK}}}[$__rate_interval]))",
                    "graph breaks",
                ),
                Query(f"sum(increase(training_steps_skipped_total{{{ONE_RANK}}}[$__rate_interval]))", "steps skipped"),
            ),
        ),
        Panel(
            "Slow steps",
            "traces",
            "Steps with a trace because they were slow. Follow the trace id: one trace holds the step on all ranks; "
            "look for the phase that is long on one rank only.",
            (Query('training.run.id="$run" training.sampled.reason="slow"'),),
        ),
        Panel(
            "Steps with a straggler",
            "traces",
            "Steps with a trace because one rank held the others of its node up, whether or not they were slow; it is "
            "the one that waits least.",
            (Query('training.run.id="$run" training.sampled.reason="straggler"'),),
        ),
        Panel(
            "All sampled steps",
            "traces",
            "Steps with a trace, for whatever reason; a usual one to compare a slow one with.",
            (Query('training.run.id="$run"'),),
        ),
    ),
)
