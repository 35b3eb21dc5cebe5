"""The account of one rank's wall clock as it goes: every nanosecond charged once, to one state, and never taken back.

That is what monotonic counters need (`training.time`); with hindsight the engine (`history`, `queries`) knows better,
and what it says is `training.goodput` and `trainspan goodput`. They differ in this: the engine charges the steps that
were lost, this account the steps that are done again; the excess of first steps and of hangs, and long waits for slower
ranks, are `productive` here.

What is charged when:

* `restart`: between the last sign of life of the attempt before and the start of the process.
* `lost_work`: steps that an earlier attempt had done.
* `init`: until the first step starts; the whole life of a process that never took one.
* A checkpoint loaded or saved before that: `checkpoint_load`, `checkpoint_save`.
* A phase that the user has named is `custom.<name>`, before the first step and ever after.
* In a completed step: waiting for a batch is `data_wait`, validation is `validation`, a checkpoint as before, what the
  compiler took is `compile`, everything else is `productive`.
* After the last step, until an orderly close: `shutdown`, but for validation, checkpoints and what the user has named,
  which stay themselves.
* `unaccounted`: the unfinished last step of a process that died or raised, the time of steps whose marks were lost,
  and what a process did that entered phases and completed no step.

A state only ever grows, so the states can be exported as monotonic counters: time is charged up to the end of the last
completed step and no further, because nobody knows yet what the running step will turn out to be. `states_at` shows
that open remainder as `unaccounted`, for whoever wants the account up to now.
"""

from collections.abc import Mapping
from typing import Final

from trainspan.names import AnyPhase, NamedPhase, Phase
from trainspan.relay.timeline.records import ProcessEnd, RankStep

_ALWAYS: Final = {
    Phase.VALIDATION: "validation",
    Phase.CHECKPOINT_SAVE: "checkpoint_save",
    Phase.CHECKPOINT_LOAD: "checkpoint_load",
}
"""Phases that are a state of their own, wherever they come."""


class _States(dict[AnyPhase, str]):
    """The state of each phase. One that a user has named is a state of its own, unless `of_named` is one for them all.

    Args:
        special: phases with a state of their own.
        default: of all others.
    """

    def __init__(self, special: Mapping[Phase, str], default: str, of_named: str | None = None):
        super().__init__((phase, special.get(phase, default)) for phase in Phase)
        self._of_named = of_named

    def __missing__(self, phase: NamedPhase) -> str:
        return self._of_named or phase.wire


_IN_STEPS: Final = {**_ALWAYS, Phase.DATA_WAIT: "data_wait"}
_KEPT: Final = {phase: state for phase, state in _ALWAYS.items() if state.startswith("checkpoint")}
_STATE_OF: Final = _States(_IN_STEPS, "productive")
_STATE_AGAIN: Final = _States(_KEPT, "lost_work", of_named="lost_work")
_STATE_AFTER_STEPS: Final = _States(_ALWAYS, "shutdown")
_STATE_WITHOUT_STEPS: Final = _States(_ALWAYS, "unaccounted")


MOST_HELD: Final = 4096
"""What is held of the time before the first step; a program may name phases and never make a step."""


class Account:
    """Ns per state of one rank. The states always add up to `elapsed_ns`.

    Args:
        process_start_ns: monotonic time at which the process began.
        states_ns: what was charged to it before, to go on from; `steps`: how many steps that was for. These are not to
            be charged again.

    Attributes:
        began_ns: monotonic time at which the process began, or the outage before it.
        charged_until_ns: up to here, time has its final state.
        held: (start_ns, end_ns, state): what the process did before its first step, and is not charged yet.
    """

    def __init__(self, process_start_ns: int, states_ns: Mapping[str, int] = {}, steps: int = 0):
        gap_ns = states_ns.get("restart", 0)
        self.began_ns = process_start_ns - gap_ns
        self.charged_until_ns = self.began_ns + sum(states_ns.values())
        self._states_ns = dict(states_ns)
        self._started = False
        self._stepped = steps > 0
        self._resumed = gap_ns > 0
        self._steps = steps
        self._steps_again = 0
        self.held: list[tuple[int, int, str]] = []

    def resume(self, gap_ns: int, steps_again: int) -> None:
        """Note what an attempt begins with: `gap_ns` of nothing, and its first `steps_again` steps are done again."""
        if not self._resumed and gap_ns > 0:
            self._states_ns["restart"] = gap_ns
            self.began_ns -= gap_ns
        self._resumed = True
        self._steps_again = steps_again

    def hold(self, start_ns: int, end_ns: int, state: str) -> None:
        """Note what the rank did before its first step, in any order; to be charged once that has started."""
        self.held.append((start_ns, end_ns, state))

    def settle(self, until_ns: int | None) -> None:
        """Charge what is held, where that is too much: no step has started until `until_ns`."""
        if len(self.held) > MOST_HELD:
            self._charge_held(until_ns)

    def start(self, at_ns: int | None) -> None:
        """Charge what is held, and `init`: the first step started at `at_ns`; None: lost marks hide when that was."""
        self._charge_held(at_ns)
        if not self._started and at_ns is not None:
            self._charge("init", at_ns)
        self._started = True

    def _charge_held(self, until_ns: int | None) -> None:
        held, self.held = self.held, []
        for start_ns, end_ns, state in sorted(held):
            if until_ns is None or end_ns <= until_ns:
                self._charge("init", start_ns)
                self._charge(state, end_ns)

    def charge(self, step: RankStep, phase_times_ns: Mapping[AnyPhase, int], compiling_ns: int = 0) -> None:
        """Charge a completed step, and what lies between it and the step before as `unaccounted`.

        Args:
            step: a completed step; steps come in order.
            phase_times_ns: its `phase_times_of`.
            compiling_ns: how much of it the compiler took, out of what would be productive.
        """
        self._started = self._stepped = True
        self._steps += 1
        if step.start_ns < self.charged_until_ns:
            self._charge_intervals(step, _STATE_OF)  # only after hostile marks: part of it is charged already
            return
        self._charge("unaccounted", step.start_ns)
        states_ns = self._states_ns
        state_of = _STATE_OF if self._steps > self._steps_again else _STATE_AGAIN
        productive_ns = states_ns.get("productive", 0)
        for phase, time_ns in phase_times_ns.items():
            state = state_of[phase]
            states_ns[state] = states_ns.get(state, 0) + time_ns
        if compiling_ns:
            moved_ns = min(compiling_ns, states_ns.get("productive", 0) - productive_ns)
            states_ns["productive"] = states_ns.get("productive", 0) - moved_ns
            states_ns["compile"] = states_ns.get("compile", 0) + moved_ns
        self.charged_until_ns = step.end_ns

    def close(self, end: ProcessEnd, unfinished: RankStep | None) -> None:
        """Charge the rest, up to the end of the process.

        Args:
            end: how the process ended.
            unfinished: the step it ended in, as `RankTimeline.end` gives it.
        """
        self._charge_held(end.at_ns)
        if not self._started:
            self._charge("init", end.at_ns)
        elif not end.failed and unfinished is not None:
            self._charge("unaccounted", unfinished.start_ns)
            self._charge_intervals(unfinished, _STATE_AFTER_STEPS if self._stepped else _STATE_WITHOUT_STEPS)
            self._charge("shutdown", end.at_ns)
        else:
            self._charge("unaccounted", end.at_ns)

    def states(self) -> dict[str, int]:
        """Ns per state up to `charged_until_ns`, without states that got nothing."""
        return dict(self._states_ns)

    def states_at(self, now_ns: int) -> dict[str, int]:
        """Ns per state up to `now_ns`; what is not charged yet counts as `unaccounted`."""
        states_ns = self.states()
        if now_ns > self.charged_until_ns:
            states_ns["unaccounted"] = states_ns.get("unaccounted", 0) + now_ns - self.charged_until_ns
        return states_ns

    @property
    def elapsed_ns(self) -> int:
        """What the states add up to."""
        return self.charged_until_ns - self.began_ns

    def _charge_intervals(self, step: RankStep, state_of: Mapping[AnyPhase, str]) -> None:
        for phase, _start_ns, end_ns, _failed in step.intervals:
            self._charge(state_of[phase], end_ns)

    def _charge(self, state: str, until_ns: int) -> None:
        """Charge what is open before `until_ns`."""
        if until_ns > self.charged_until_ns:
            self._states_ns[state] = self._states_ns.get(state, 0) + until_ns - self.charged_until_ns
            self.charged_until_ns = until_ns
