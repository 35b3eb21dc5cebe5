"""What the time of a run is charged to: one scenario for each rule, in seconds that can be checked by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.goodput_facts import S, activity, begun, ended, history_of, seconds, steps, window_s
from trainspan.clock import Anchor
from trainspan.names import Phase
from trainspan.relay.goodput.facts import Alive, Begun, Fact, Loaded, Piece, Saved, Step, step_of
from trainspan.relay.goodput.life import DETAIL_STEPS, PIECES
from trainspan.relay.goodput.queries import Scope, Window, ettr, mfu, pace, report, reports, rolling
from trainspan.relay.timeline.records import Interval, RankStep

MINUTE = range(0, 70, 10)
"""Six steps of ten seconds."""


def restarted(first: int, *, at: float = 80.0, attempt: int = 1) -> list[Fact]:
    """An attempt that begins at `at`, loads for ten seconds and makes three steps from `first` on."""
    loads = activity("checkpoint_load", at + 5, at + 15, attempt=attempt)
    times = [at + 20 + 10 * place for place in range(4)]
    return [begun(at, attempt=attempt), loads, *steps(first, times, attempt=attempt)]


class TestSteps:
    """One attempt, one rank."""

    def test_blocking_input_counts_on_every_step(self) -> None:
        """The peer charges the first load only, and calls an input-bound job productive."""
        history = history_of([begun(0), *steps(0, MINUTE, wait=8.0)])

        assert seconds(history) == {"data_wait": 48.0, "productive": 12.0}

    def test_first_step_beyond_the_reference_is_compile(self) -> None:
        """The first 8 s of the first step are what it took longer than the others."""
        history = history_of([begun(0), *steps(0, [0, 11, 14, 17, 20])])

        assert seconds(history) == {"compile": 8.0, "productive": 12.0}
        assert seconds(history, window_s(0, 8)) == {"compile": 8.0}

    def test_step_marked_recompiled_is_measured_against_its_neighbours(self) -> None:
        """Steps became slower long before: 30 s of this one are normal now, 60 s are not."""
        times = [*range(0, 200, 10), *range(200, 2000, 30), 2060]

        history = history_of([begun(0), *steps(0, times, recompiled=len(times) - 2)])

        assert seconds(history)["compile"] == 2060 - times[-2] - 30

    def test_step_with_a_save_in_it_is_no_reference(self) -> None:
        """Four of five steps save for 4 s: a step still takes 10 s, so the first is no compilation."""
        saves = [activity("checkpoint_save", at, at + 4) for at in (11, 21, 31, 41)]

        history = history_of([begun(0), *steps(0, MINUTE), *saves])

        assert seconds(history) == {"checkpoint_save": 16.0, "productive": 44.0}

    def test_nested_and_straddling_customs_are_charged_once(self) -> None:
        """The peer subtracts a nested one twice, and loses one that straddles a step."""
        customs = [activity("custom.eval", 5, 25), activity("custom.log", 10, 12, depth=1)]

        history = history_of([begun(0), *steps(0, MINUTE), *customs])

        assert seconds(history) == {"custom.eval": 18.0, "custom.log": 2.0, "productive": 40.0}

    def test_several_steps_told_as_one_are_all_productive(self) -> None:
        """A log of every tenth step is still a log of all of them."""
        history = history_of([begun(0), Step(0, 0, 0, 0, 60 * S, (), steps=60)])

        answer = report(history)

        assert (answer.goodput, answer.steps, answer.last_step) == (1.0, 60, 59)

    @pytest.mark.parametrize("asked", [True, False])
    @pytest.mark.parametrize("count", [4, 33, 34, 70])
    def test_late_fact_changes_what_was_concluded(self, count: int, *, asked: bool) -> None:
        """An evaluation in the second step was heard of last: that step had not been slow."""
        history = history_of([begun(0), *steps(0, [0, 10, 40, *range(50, 50 + 10 * count, 10)])])
        if asked:
            assert seconds(history)["compile"] == 20.0

        history.add(activity("custom.eval", 15, 35))

        assert seconds(history) == {"custom.eval": 20.0, "productive": 10.0 * count + 20.0}

    def test_step_of_the_timeline_becomes_a_fact(self) -> None:
        """Phases that are no work become pieces; times go from the host's clock to Unix time."""
        intervals = (
            Interval(Phase.DATA_WAIT, 10, 30),
            Interval(Phase.FORWARD, 30, 60),
            Interval(Phase.VALIDATION, 60, 70),
            Interval(Phase.OTHER, 70, 80),
        )

        fact = step_of(RankStep(7, 10, 80, intervals, 1), 2, 3, Anchor(monotonic_ns=10, unix_ns=1000))

        assert fact == Step(2, 3, 7, 1000, 1070, (Piece("data_wait", 1000, 1020), Piece("validation", 1050, 1060)))


class TestSilence:
    """What nobody told about."""

    def test_time_before_the_first_step_of_a_run_is_unaccounted(self) -> None:
        """Nothing is invented: what was recorded is charged, the rest is shown."""
        history = history_of([begun(0), activity("init", 1, 9), *steps(0, [20, 30])])

        assert seconds(history) == {"init": 8.0, "productive": 10.0, "unaccounted": 12.0}

    def test_silence_is_a_hang_after_a_minute_and_ten_steps(self) -> None:
        """The first reference step of the silence could have been a step."""
        history = history_of([begun(0), *steps(0, MINUTE)])

        quiet, hung = (seconds(history, window_s(now=now)) for now in (160, 161))

        assert quiet == {"productive": 60.0, "unaccounted": 100.0}
        assert hung == {"hang": 91.0, "productive": 60.0, "unaccounted": 10.0}

    def test_hang_that_ended_stays_one(self) -> None:
        """A step that came after 15 minutes did not work for 15 minutes."""
        history = history_of([begun(0), *steps(0, [*MINUTE, 960])])

        assert seconds(history) == {"hang": 890.0, "productive": 70.0}
        assert seconds(history, window_s(60, 70)) == {"productive": 10.0}

    def test_hang_between_two_steps_is_found(self) -> None:
        """Marks can be lost; the silence is in the history all the same."""
        history = history_of([begun(0), *steps(0, MINUTE), *steps(6, [960, 970])])

        assert seconds(history) == {"hang": 890.0, "productive": 70.0, "unaccounted": 10.0}

    def test_hang_before_a_death_is_no_lost_work(self) -> None:
        """A watchdog kills after ten minutes: the time went into the hang, one step into the loss."""
        history = history_of([begun(0), *steps(0, MINUTE), Alive(0, 0, 660 * S), ended(660)])

        assert seconds(history) == {"hang": 590.0, "lost_work": 10.0, "productive": 60.0}

    def test_open_activity_explains_the_silence(self) -> None:
        """A validation of 15 minutes is no hang while it runs, nor when it was never ended."""
        history = history_of([begun(0), *steps(0, MINUTE), activity("validation", 62, None)])

        running = seconds(history, window_s(now=960))
        history.add_all(steps(6, [1000, 1010]))

        assert running == {"productive": 60.0, "unaccounted": 2.0, "validation": 898.0}
        assert seconds(history) == {"productive": 70.0, "unaccounted": 2.0, "validation": 938.0}

    def test_time_after_an_orderly_end_is_shutdown(self) -> None:
        """The last step ended, the process closed its recording 30 s later."""
        history = history_of([begun(0), *steps(0, MINUTE), ended(90, orderly=True)])

        assert seconds(history, window_s(now=5000)) == {"productive": 60.0, "shutdown": 30.0}

    def test_long_shutdown_is_no_hang(self) -> None:
        """A last upload of ten minutes, and then an orderly end."""
        history = history_of([begun(0), *steps(0, MINUTE), ended(660, orderly=True)])

        assert seconds(history) == {"productive": 60.0, "shutdown": 600.0}

    @pytest.mark.parametrize("orderly", [True, False])
    def test_of_two_ends_the_disorderly_one_counts(self, *, orderly: bool) -> None:
        """Two processes of one rank: one was killed."""
        ends = [ended(70, orderly=orderly), ended(70, orderly=not orderly)]

        history = history_of([begun(0), *steps(0, MINUTE), *ends])

        assert seconds(history) == {"lost_work": 10.0, "productive": 60.0}

    def test_unfinished_step_of_a_dead_rank_is_lost_work(self) -> None:
        """At most the unfinished step is lost without a trace; here it left one."""
        unfinished = Step(0, 0, 6, 60 * S, 75 * S, (Piece("data_wait", 60 * S, 65 * S),), complete=False)

        running = history_of([begun(0), *steps(0, MINUTE), unfinished])
        dead = history_of([begun(0), *steps(0, MINUTE), unfinished, ended(75)])

        assert seconds(running) == {"data_wait": 5.0, "productive": 60.0, "unaccounted": 10.0}
        assert seconds(dead) == {"data_wait": 5.0, "lost_work": 10.0, "productive": 60.0}


class TestRestarts:
    """One rank, several attempts."""

    def test_resume_without_a_repeated_step_is_a_disruption(self) -> None:
        """The peer sees no restart here, and calls two minutes of outage productive."""
        history = history_of([begun(0), *steps(0, MINUTE), *restarted(6)])

        answer = report(history)

        assert seconds(history) == {"checkpoint_load": 10.0, "productive": 90.0, "restart": 30.0}
        assert (answer.disruptions, answer.steps_lost, answer.last_step) == (1, 0, 8)

    def test_steps_after_the_checkpoint_are_lost(self) -> None:
        """Resumed at step 4: steps 4 and 5 were done again."""
        history = history_of([begun(0), *steps(0, MINUTE), *restarted(4)])

        answer, (disruption,) = report(history), history.disruptions()

        assert seconds(history) == {"checkpoint_load": 10.0, "lost_work": 20.0, "productive": 70.0, "restart": 30.0}
        assert (answer.steps, answer.steps_lost, answer.last_step) == (7, 2, 6)
        assert (disruption.resumed_step, disruption.lost_steps, disruption.known_by) == (4, 2, "step number")

    def test_save_that_was_resumed_from_is_not_lost(self) -> None:
        """It lies inside the first step after it, which is."""
        save = activity("checkpoint_save", 41, 44)

        history = history_of([begun(0), *steps(0, MINUTE), save, *restarted(4)])

        assert seconds(history)["lost_work"] == 17.0
        assert seconds(history)["checkpoint_save"] == 3.0

    def test_everything_else_in_a_lost_step_is_lost(self) -> None:
        """Its waiting and its validation have to be done again with it."""
        validation = activity("validation", 52, 58)

        history = history_of([begun(0), *steps(0, MINUTE, wait=1.0), validation, *restarted(4)])

        assert seconds(history)["lost_work"] == 20.0
        assert seconds(history)["data_wait"] == 4.0
        assert "validation" not in seconds(history)

    def test_roll_back_behind_an_earlier_attempt_takes_its_steps_back(self) -> None:
        """The third attempt resumes where the first had long been: the peer keeps 40 s of redone work."""
        second, third = restarted(4), restarted(2, at=200, attempt=2)

        history = history_of([begun(0), *steps(0, MINUTE), *second, *third])

        assert seconds(history)["productive"] == 20.0 + 30.0
        assert seconds(history)["lost_work"] == 40.0 + 30.0
        assert [disruption.lost_steps for disruption in history.disruptions()] == [2, 5]

    def test_restart_from_zero_loses_everything(self) -> None:
        """The peer calls this OTHER."""
        history = history_of([begun(0), *steps(0, MINUTE), *restarted(0)])

        assert seconds(history)["lost_work"] == 60.0
        assert report(history).last_step == 2

    def test_crash_loop_is_recovery_until_the_first_new_step(self) -> None:
        """Attempts that made no step: three failures, one recovery."""
        loop: list[Fact] = []
        for attempt, at in ((1, 80), (2, 120), (3, 160)):
            loop += [begun(at, attempt=attempt), activity("init", at, at + 10, attempt=attempt)]
            loop += [ended(at + 15, attempt=attempt)] if attempt < 3 else []

        history = history_of([begun(0), *steps(0, MINUTE), *loop, *steps(6, [180, 190], attempt=3)])

        assert seconds(history) == {"init": 30.0, "productive": 70.0, "restart": 90.0}
        assert report(history).disruptions == 3

    def test_planned_stop_is_no_failure_and_its_gap_is_shown(self) -> None:
        """Closed on Friday, resumed on Monday."""
        history = history_of([begun(0), *steps(0, MINUTE), ended(60, orderly=True), *restarted(6, at=1000)])

        answer = report(history)

        assert (answer.disruptions, answer.planned_stops, answer.planned_stop_s) == (0, 1, 940.0)
        assert answer.badput_s["restart"] == 940.0 + 10.0

    def test_loop_that_goes_back_by_itself_loses_the_steps_too(self) -> None:
        """A loss spike: the script reloads step 3 without a restart."""
        history = history_of([begun(0), *steps(0, MINUTE), *steps(3, range(60, 110, 10))])

        answer = report(history)

        assert seconds(history) == {"lost_work": 30.0, "productive": 70.0}
        assert (answer.disruptions, answer.steps, answer.steps_lost, answer.last_step) == (0, 7, 3, 6)

    def test_loop_that_goes_back_behind_its_own_beginning_takes_earlier_steps_back(self) -> None:
        """Resumed at step 4, then back to step 2 without a restart: steps 2 and 3 of the first attempt are lost too."""
        back = steps(2, [120, 130, 140], attempt=1)

        history = history_of([begun(0), *steps(0, MINUTE), *restarted(4), *back])

        answer = report(history)
        assert (answer.steps, answer.steps_lost, answer.last_step) == (4, 7, 3)
        assert seconds(history)["lost_work"] == 40.0 + 30.0

    def test_time_is_lost_once_where_steps_that_were_done_again_overlap(self) -> None:
        """Two threads, or a clock set back: the second half of step 0 would be taken from productive twice."""
        overlapping = [*steps(0, [0, 20]), *steps(0, [10, 20]), *steps(0, [20, 30])]

        history = history_of([begun(0), *overlapping])

        assert seconds(history) == {"lost_work": 20.0, "productive": 10.0}
        assert seconds(history, window_s(0, 15)) == {"lost_work": 15.0}
        assert report(history).steps_lost == 2

    def test_steps_that_the_loop_did_again_stay_lost_after_a_restart(self) -> None:
        """Step 0 three times, then a restart from step 1: two of the three were in vain, wherever the run went on."""
        again = [step for at in (0, 10, 20) for step in steps(0, [at, at + 10])]

        history = history_of([begun(0), *again, begun(40, attempt=1), *steps(1, [40, 50], attempt=1)])

        assert seconds(history) == {"lost_work": 20.0, "productive": 20.0, "restart": 10.0}
        assert (report(history).steps, report(history).steps_lost) == (2, 2)

    def test_what_a_cut_takes_away_is_told(self) -> None:
        """Twenty seconds of the old process lie behind the beginning of the new one; ten of them in the window."""
        history = history_of([begun(0), *steps(0, MINUTE), *restarted(4, at=40)])

        assert report(history).overlap_s == 20.0
        assert report(history, Window(50 * S, 100 * S)).overlap_s == 10.0
        assert report(history_of([begun(0), *steps(0, MINUTE), *restarted(4)])).overlap_s == 0.0

    def test_clock_that_was_set_back_an_hour_loses_no_time_in_silence(self) -> None:
        """The second attempt begins before the first: the time of the first has no place on this clock."""
        first = steps(0, range(4000, 4060, 10))

        history = history_of([begun(4000), *first, begun(400, attempt=1), *steps(5, range(410, 470, 10), attempt=1)])

        answer = report(history)
        assert (answer.total_s, answer.productive_s, answer.badput_s) == (60.0, 50.0, {"restart": 10.0})
        assert (answer.overlap_s, answer.last_step) == (50.0, 9)

    def test_zombie_is_cut_where_its_successor_begins(self) -> None:
        """The old process still recorded for 20 s: a rank has one clock."""
        history = history_of([begun(0), *steps(0, MINUTE), *restarted(4, at=40)])

        states = seconds(history)

        assert sum(states.values()) == 90.0
        assert states == {"checkpoint_load": 10.0, "productive": 70.0, "restart": 10.0}


class TestResumes:
    """Steps that count from 0 in each attempt, as they do when nobody tells the number in the run."""

    FIRST: tuple[Fact, ...] = (
        begun(0, in_run=False),
        *steps(0, MINUTE),
        Saved(0, 0, 21 * S, 2, "two"),
        Saved(0, 0, 41 * S, 4, "four"),
    )

    @pytest.mark.parametrize(
        ("loaded", "resumed_step", "known_by"),
        [
            ([Loaded(1, 0, 85 * S, 3)], 3, "load"),
            ([Loaded(1, 0, 85 * S, None, "two")], 2, "load"),
            ([Loaded(1, 0, 85 * S, None, "two"), Loaded(1, 0, 86 * S, None, "four")], 4, "load"),
            ([Loaded(1, 0, 85 * S, None, "two"), Loaded(1, 0, 115 * S, None, "four")], 2, "load"),
            ([Loaded(1, 0, 85 * S, None, "somebody else's")], 4, "last save"),
            ([], 4, "last save"),
        ],
    )
    def test_resume_step_is_found_from_what_was_loaded(
        self, loaded: Sequence[Fact], resumed_step: int, known_by: str
    ) -> None:
        """Lost work needs the step resumed from, and most scripts do not number their steps for us."""
        second: list[Fact] = [begun(80, attempt=1, in_run=False), *loaded, *steps(0, [100, 110, 120], attempt=1)]

        history = history_of([*self.FIRST, *second])

        (disruption,) = history.disruptions()
        assert (disruption.resumed_step, disruption.known_by) == (resumed_step, known_by)
        assert seconds(history)["lost_work"] == 60.0 - 10.0 * resumed_step
        assert report(history).last_step == resumed_step + 1

    @pytest.mark.parametrize("cache_bytes", [100, 50_000])
    def test_file_saved_before_the_first_step_is_no_checkpoint(self, cache_bytes: int) -> None:
        """A cache of the data set is saved and loaded like a checkpoint, and may be far larger or far smaller."""
        first: list[Fact] = [
            begun(0, in_run=False),
            Saved(0, 0, 1 * S, 0, "cache", cache_bytes),
            *steps(0, MINUTE),
            Saved(0, 0, 41 * S, 4, "four", 2000),
        ]
        loads: list[Fact] = [Loaded(1, 0, 85 * S, None, "four"), Loaded(1, 0, 86 * S, None, "cache")]
        second = [begun(80, attempt=1, in_run=False), *loads, *steps(0, [100, 110, 120], attempt=1)]

        history = history_of([*first, *second])

        (disruption,) = history.disruptions()
        assert (disruption.resumed_step, disruption.known_by, disruption.lost_steps) == (4, "load", 2)
        assert history.saves() == [(0, 4, 41 * S)]

    def test_cache_that_alone_was_loaded_is_not_where_the_run_resumed(self) -> None:
        """The checkpoint came from elsewhere: moved to its name, or read by what nobody watches."""
        first: list[Fact] = [Saved(0, 0, 1 * S, 0, "cache", 100), *self.FIRST]
        loads: list[Fact] = [Loaded(1, 0, 85 * S, None, "cache"), Loaded(1, 0, 86 * S, None, "moved")]

        history = history_of([*first, begun(80, attempt=1, in_run=False), *loads, *steps(0, [100, 110], attempt=1)])

        (disruption,) = history.disruptions()
        assert (disruption.resumed_step, disruption.known_by) == (4, "last save")

    @pytest.mark.parametrize(("size_bytes", "resumed_step"), [(99, 4), (100, 1), (None, 1)])
    def test_part_that_was_saved_before_the_first_checkpoint_is_a_part(
        self, size_bytes: int | None, resumed_step: int
    ) -> None:
        """A list of scores after each step, loaded again behind the checkpoint: a tenth of its size says what it is.

        What is no single file has no size, and counts.
        """
        first: list[Fact] = [
            begun(0, in_run=False),
            *steps(0, MINUTE),
            Saved(0, 0, 11 * S, 1, "scores", size_bytes),
            Saved(0, 0, 41 * S, 4, "four", 1000),
        ]
        loads: list[Fact] = [Loaded(1, 0, 85 * S, None, "four"), Loaded(1, 0, 86 * S, None, "scores")]
        second = [begun(80, attempt=1, in_run=False), *loads, *steps(0, [100, 110, 120], attempt=1)]

        history = history_of([*first, *second])

        assert history.disruptions()[0].resumed_step == resumed_step

    def test_part_stays_one_when_an_attempt_has_saved_nothing_else(self) -> None:
        """It was killed before its first checkpoint: the size is measured against those of the attempts before."""
        second: list[Fact] = [
            begun(80, attempt=1, in_run=False),
            Loaded(1, 0, 85 * S, None, "four"),
            *steps(0, [100, 110, 120], attempt=1),
            Saved(1, 0, 111 * S, 1, "scores", 10),
        ]
        loads: list[Fact] = [Loaded(2, 0, 135 * S, None, "four"), Loaded(2, 0, 136 * S, None, "scores")]
        third = [begun(130, attempt=2, in_run=False), *loads, *steps(0, [140, 150], attempt=2)]

        history = history_of([*self.FIRST[:-1], Saved(0, 0, 41 * S, 4, "four", 1000), *second, *third])

        assert [disruption.resumed_step for disruption in history.disruptions()] == [4, 4]

    def test_checkpoint_saved_again_before_the_first_step_holds_what_was_loaded(self) -> None:
        """Rolled back to step 2 and written as the latest: the next attempt goes on from step 2, not from 4."""
        second: list[Fact] = [
            begun(80, attempt=1, in_run=False),
            Loaded(1, 0, 85 * S, None, "two"),
            *steps(0, [100, 110, 120], attempt=1),
            Saved(1, 0, 86 * S, 0, "four"),
        ]
        third: list[Fact] = [begun(130, attempt=2, in_run=False), Loaded(2, 0, 135 * S, None, "four")]

        history = history_of([*self.FIRST, *second, *third, *steps(0, [140, 150], attempt=2)])

        assert [disruption.resumed_step for disruption in history.disruptions()] == [2, 2]

    def test_run_that_never_saved_starts_from_zero(self) -> None:
        """There is nothing else it could start from."""
        second: list[Fact] = [begun(80, attempt=1, in_run=False), *steps(0, [100, 110, 120], attempt=1)]

        history = history_of([*self.FIRST[:-2], *second])

        assert seconds(history)["lost_work"] == 60.0
        assert history.disruptions()[0].known_by == "nothing saved"

    def test_nothing_is_taken_back_before_the_resume_step_is_known(self) -> None:
        """A restart that has not loaded anything yet may still resume from the last step."""
        history = history_of([*self.FIRST, begun(80, attempt=1, in_run=False)])

        assert seconds(history)["productive"] == 60.0
        assert history.disruptions()[0].resumed_step is None


class TestJob:
    """The job from its ranks."""

    def test_job_is_productive_when_its_slowest_rank_is(self) -> None:
        """Rank 0 waits for input while rank 1 waits for rank 0, and then the other way round."""
        waits = [activity("data_wait", 60, 64), activity("data_wait", 70, 73, rank=1)]
        made = [step for rank in range(2) for step in steps(0, range(0, 90, 10), rank=rank)]

        history = history_of([begun(0), begun(0, rank=1), *made, *waits])

        assert seconds(history) == {"data_wait": 7.0, "productive": 73.0}
        assert seconds(history, scope=Scope(rank=1)) == {"data_wait": 3.0, "productive": 77.0}

    def test_waiting_for_the_straggler_does_not_hold_the_job_back(self) -> None:
        """The straggler does, and it works."""
        waits = activity("straggler_wait", 4, 10, rank=1)

        history = history_of([begun(0), begun(0, rank=1), *steps(0, [0, 10]), *steps(0, [0, 10], rank=1), waits])

        assert seconds(history) == {"productive": 10.0}
        assert seconds(history, scope=Scope(rank=1)) == {"productive": 4.0, "straggler_wait": 6.0}

    def test_step_is_made_when_the_last_rank_has_made_it(self) -> None:
        """A run resumes from what all of its ranks have."""
        history = history_of([begun(0), begun(0, rank=1), *steps(0, MINUTE), *steps(0, [0, 11, 21], rank=1)])

        assert report(history).last_step == 1
        assert report(history, scope=Scope(rank=0)).last_step == 5

    def test_silent_rank_holds_the_job_back(self) -> None:
        """Nobody can say that it worked."""
        history = history_of([begun(0), begun(0, rank=1), *steps(0, MINUTE), *steps(0, range(0, 40, 10), rank=1)])

        assert seconds(history) == {"productive": 30.0, "unaccounted": 30.0}

    @pytest.mark.parametrize("until", [None, 60])
    def test_rank_that_makes_no_step_does_not_hold_the_job_back(self, until: int | None) -> None:
        """One that evaluates, or serves samples, is in its init all its life; others make the steps."""
        beside: list[Fact] = [begun(0, rank=1), activity("init", 0, until, rank=1), ended(60, rank=1, orderly=True)]

        history = history_of([begun(0), activity("init", 0, 10), *steps(0, MINUTE[1:]), *beside])

        assert seconds(history) == {"init": 10.0, "productive": 50.0}
        assert seconds(history, scope=Scope(rank=1)) == {"init": 60.0}

    def test_before_anybody_steps_all_ranks_count(self) -> None:
        """Who will make steps, nobody can know yet; once one has, the steps so far are seen in its light."""
        history = history_of([begun(0), activity("init", 0, 5), begun(0, rank=1), activity("init", 0, 20, rank=1)])
        before = seconds(history)

        history.add_all(steps(0, [20, 30]))

        assert before == {"init": 20.0}
        assert seconds(history) == {"init": 5.0, "productive": 10.0, "unaccounted": 15.0}

    def test_dead_rank_is_no_part_of_the_job_any_more(self) -> None:
        """Until the others are gone too they lose their work, not the dead one."""
        dead: list[Fact] = [*steps(0, range(0, 40, 10), rank=1), ended(32, rank=1)]
        other: list[Fact] = [*steps(0, range(0, 40, 10)), Step(0, 0, 3, 30 * S, 45 * S, complete=False), ended(45)]

        history = history_of([begun(0), begun(0, rank=1), *dead, *other])

        assert seconds(history) == {"lost_work": 15.0, "productive": 30.0}
        assert seconds(history, scope=Scope(rank=1)) == {"lost_work": 2.0, "productive": 30.0}

    def test_rank_that_left_has_no_clock_and_one_that_came_has(self) -> None:
        """Elastic training: four ranks, then two, then four."""
        sizes = ((0, 0, range(4)), (1, 100, range(2)), (2, 200, range(4)))
        facts: list[Fact] = []
        for attempt, at, ranks in sizes:
            for rank in ranks:
                facts.append(Begun(attempt, rank, at * S, "n0", len(ranks), True))
                facts += steps(attempt * 6, range(at, at + 70, 10), attempt=attempt, rank=rank)

        history = history_of(facts)

        changes = [(disruption.world_size_before, disruption.world_size) for disruption in history.disruptions()]
        assert changes == [(4, 2), (2, 4)]
        assert seconds(history) == {"productive": 180.0, "restart": 80.0}
        assert seconds(history, scope=Scope(rank=3)) == {"productive": 120.0}
        assert seconds(history, scope=Scope(rank=1)) == {"productive": 180.0, "restart": 80.0}

    def test_recovery_lasts_until_the_last_rank_steps(self) -> None:
        """The job recovers when all of it has."""
        second: list[Fact] = [begun(80, attempt=1), begun(80, attempt=1, rank=1)]
        late = [*steps(6, [90, 110], attempt=1), *steps(6, [100, 110], attempt=1, rank=1)]
        first: list[Fact] = [begun(0), begun(0, rank=1), *steps(0, MINUTE), *steps(0, MINUTE, rank=1)]

        history = history_of([*first, *second, *late])

        assert seconds(history) == {"productive": 70.0, "restart": 40.0}


class TestQuestions:
    """What can be asked."""

    HISTORY = history_of([begun(0), *steps(0, MINUTE), *restarted(4)])

    def test_json_has_stable_keys(self) -> None:
        """Other programs read them."""
        answer = report(self.HISTORY, Window(0, 100 * S, ((10 * S, 20 * S),)))

        assert answer.to_json() == {
            "goodput": 30.0 / 90.0,
            "total_s": 90.0,
            "productive_s": 30.0,
            "badput_s": {"checkpoint_load": 10.0, "lost_work": 20.0, "restart": 30.0},
            "unaccounted_s": 0.0,
            "excluded_s": 10.0,
            "overlap_s": 0.0,
            "disruptions": 1,
            "planned_stops": 0,
            "planned_stop_s": 0.0,
            "steps": 3,
            "steps_lost": 2,
            "last_step": 3,
            "began_unix_s": 0.0,
            "ended_unix_s": 100.0,
            "window": {"since": 0.0, "until": 100.0, "exclude": [[10.0, 20.0]]},
        }

    def test_history_without_facts_answers(self) -> None:
        """The first question comes before the first fact."""
        answer = report(history_of([]))

        assert (answer.goodput, answer.total_s, answer.last_step) == (None, 0.0, None)
        assert pace(history_of([])) is None
        assert ettr(answer) is None

    @pytest.mark.parametrize("scope", [Scope(rank=9), Scope(node="n9"), Scope(attempt=9)])
    def test_what_the_run_does_not_have_has_no_time(self, scope: Scope) -> None:
        """Whoever asks for rank 9 of 8 gets an empty answer, not an exception."""
        answer = report(self.HISTORY, scope=scope)

        assert (answer.goodput, answer.total_s, answer.steps, answer.began_unix_s) == (None, 0.0, 0, None)
        assert pace(self.HISTORY, scope=scope) is None

    def test_window_holds_the_silence_in_it(self) -> None:
        """The peer's window ends at the last record, so its goodput is 100 % while nothing happens."""
        history = history_of([begun(0), *steps(0, MINUTE)])

        answer = report(history, rolling(600 * S, 650 * S))

        assert (answer.total_s, answer.productive_s) == (600.0, 10.0)

    def test_rolling_window_forgets_what_is_behind_it(self) -> None:
        """Goodput of the last half minute."""
        answer = report(self.HISTORY, rolling(30 * S, 130 * S))

        assert answer.goodput == 1.0
        assert answer.disruptions == 0

    def test_each_attempt_begins_with_the_recovery_that_led_to_it(self) -> None:
        """So the parts make the whole."""
        parts = reports(self.HISTORY, "attempt")

        assert [(number, part.total_s, part.disruptions) for number, part in parts.items()] == [
            (0, 60.0, 0),
            (1, 70.0, 1),
        ]

    def test_node_adds_up_its_ranks(self) -> None:
        """Rank-seconds: what the node was paid for."""
        facts: list[Fact] = [begun(0, node="a"), begun(0, rank=1, node="b"), begun(0, rank=2, node="b")]
        made = [step for rank in range(3) for step in steps(0, MINUTE, rank=rank)]

        parts = reports(history_of([*facts, *made]), "node")

        assert {node: part.total_s for node, part in parts.items()} == {"a": 60.0, "b": 120.0}

    def test_pace_tells_slow_steps_from_normal_ones(self) -> None:
        """Stragglers are inside productive time; only this number shows them."""
        times = [place * 1.0 for place in range(900)] + [899 + place * 1.5 for place in range(1, 121)]

        found = pace(history_of([begun(0), *steps(0, times)]))

        assert found is not None
        assert (found.ideal_s, found.deviation_s) == (1.0, 0.5)

    def test_pace_knows_steps_below_a_second(self) -> None:
        """The peer has no ideal for them."""
        found = pace(history_of([begun(0), *steps(0, [place * 0.25 for place in range(50)])]))

        assert found is not None
        assert (found.ideal_s, found.mean_s, found.deviation_s) == (0.25, 0.25, 0.0)

    def test_ettr_counts_the_queue_and_not_the_slow_steps(self) -> None:
        """Two ratios that are often taken for each other."""
        answer = report(history_of([begun(0), *steps(0, MINUTE, wait=5.0)]))

        assert (answer.goodput, ettr(answer), ettr(answer, queued_s=60.0)) == (0.5, 1.0, 0.5)

    def test_mfu_is_about_the_steps(self) -> None:
        """Half the peak while a step runs, whatever was lost before."""
        assert mfu(flops_per_step=1e15, step_s=2.0, peak_flops_per_s=1e15) == 0.5

    def test_report_cannot_be_changed(self) -> None:
        """It is handed to several exporters."""
        answer = report(self.HISTORY)

        assert replace(answer, steps=0) != answer


def test_thinned_run_keeps_its_newest_steps_and_the_number_of_all() -> None:
    """However fast its steps, a life holds what the next hour is asked about, and little else."""
    told: list[Fact] = [begun(0), *steps(0, [at / 100 for at in range(100_001)], wait=0.002)]
    history, whole = history_of(told), history_of(told)

    for at_s in (400, 700, 1000):
        history.thin(at_s * S)

    [life], [exact] = history.lives_in(0), whole.lives_in(0)
    assert len(life.steps) < DETAIL_STEPS + 4 * PIECES
    assert life.steps.starts[-DETAIL_STEPS:] == exact.steps.starts[-DETAIL_STEPS:]
    assert report(history).to_json() == report(whole).to_json()
    assert report(history, window_s(0, 500)).steps == pytest.approx(50_000, rel=1 / PIECES)
    assert pace(history) == pace(whole)


def test_what_was_lost_long_ago_is_counted_to_the_step() -> None:
    """A run that takes up a checkpoint of yesterday does a day's work again, whatever is told as one by then."""
    told: list[Fact] = [begun(0), *steps(0, range(90_001))]
    history = history_of(told)

    history.thin(90_000 * S)
    history.add_all([begun(90_010, attempt=1), *steps(20_001, [90_020, 90_021], attempt=1)])

    [disruption] = history.disruptions()
    assert disruption.lost_steps == 90_000 - 20_001
    assert report(history).steps_lost == 90_000 - 20_001
