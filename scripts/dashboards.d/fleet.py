"""Dashboard *Fleet*: all runs, side by side."""

from panels import Dashboard, Panel, Query

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
                Query(
                    f"sum {BY_RUN} (max by (job, training_run_id, training_restart_reason) "
                    "(last_over_time(training_restarts_total[$__range])))",
                    "Restarts",
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
                    'sum by (training_state) (job:training_time:rate_5m{training_state!="productive"})',
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
