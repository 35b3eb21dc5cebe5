"""Runs that never ran: summaries of made-up steps, as relays would have written them."""

from collections.abc import Mapping, Sequence

from trainspan.clock import Anchor
from trainspan.identity import Identity
from trainspan.names import Phase
from trainspan.relay.timeline.rank_summary import Ending, RankSummary
from trainspan.relay.timeline.records import Interval, RankStep, phase_times_of
from trainspan.relay.timeline.summary import Summary

START_UNIX_NS = 1_800_000_000_000_000_000
MS = 1_000_000
S = 1_000 * MS
PLAIN_MS = {Phase.DATA_WAIT: 5, Phase.FORWARD: 100, Phase.BACKWARD: 200, Phase.OPTIMIZER: 20, Phase.OTHER: 1}
"""One step of a plain loop."""


def step_of(number: int, start_ns: int, phases_ms: Mapping[Phase, int]) -> RankStep:
    """A step that has these phases one after the other."""
    intervals = []
    at_ns = start_ns
    for phase, time_ms in phases_ms.items():
        intervals.append(Interval(phase, at_ns, at_ns + time_ms * MS))
        at_ns += time_ms * MS
    return RankStep(number, start_ns, at_ns, tuple(intervals), microbatches=1)


def rank_of(
    rank: int,
    steps_ms: Sequence[Mapping[Phase, int]],
    world_size: int = 1,
    attempt: int = 0,
    host: str = "node-a",
    ending: Ending | None = None,
    sampled: Sequence[int] = (0,),
) -> RankSummary:
    """A process that began 3 s before the first of these steps and closed 1 s after the last."""
    identity = Identity("rank", "demo", attempt, rank, rank, 0, world_size, world_size, host, 4711 + rank, "trainspan")
    summary = RankSummary(f"r{rank:05}-a{attempt}-p{4711 + rank}-00000000", identity, START_UNIX_NS + attempt * 60 * S)
    anchor = Anchor(0, summary.process_start_unix_ns)
    at_ns = 3 * S
    for number, phases_ms in enumerate(steps_ms):
        step = step_of(number, at_ns, phases_ms)
        summary.add(step, phase_times_of(step), anchor, "first" if number in sampled else None)
        at_ns = step.end_ns
    waited_ns = sum(phases_ms.get(Phase.DATA_WAIT, 0) for phases_ms in steps_ms) * MS
    validated_ns = sum(phases_ms.get(Phase.VALIDATION, 0) for phases_ms in steps_ms) * MS
    summary.states_ns = {
        "init": 3 * S,
        "productive": at_ns - 3 * S - waited_ns - validated_ns,
        "data_wait": waited_ns,
        "validation": validated_ns,
        "shutdown": 1 * S,
    }
    summary.ending = ending or Ending("closed", anchor.unix_of(at_ns + S))
    return summary


def run_of(*ranks: RankSummary) -> Summary:
    """The run of these processes."""
    summary = Summary("demo")
    for rank in ranks:
        summary.add(rank)
    return summary
