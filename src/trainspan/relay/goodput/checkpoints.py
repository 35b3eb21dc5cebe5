"""Which saves of a run it can be resumed from.

A cache of the data set, a vocabulary, a list of scores and the state of a random generator are saved and loaded by the
calls that save and load a checkpoint. Two things tell them apart:

    when   Before the first step of its attempt a file holds no work. It is no checkpoint, unless checkpoints of that
           name were saved after a step: then it holds what the attempt had loaded.
    size   A file much smaller than the largest that its rank has saved after a step is a part of a checkpoint.
           What is no single file has no size, and is none.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainspan.relay.goodput.clock import Resume
from trainspan.relay.goodput.facts import Saved
from trainspan.relay.goodput.life import Life

LEAST_SHARE = 0.1
"""Of the largest save: what is smaller is a part."""


class Checkpoint(NamedTuple):
    """A save to resume from: the next step is `step`."""

    at_ns: int
    step: int
    name: str
    rank: int
    size_bytes: int | None


class Checkpoints:
    """What the attempts so far have saved, for the next one to resume from. Cost: O(1) a save, nearly always."""

    def __init__(self) -> None:
        self._kept: list[Checkpoint] = []
        self._named: dict[str, tuple[int, int]] = {}
        self._newest: tuple[int, int] | None = None
        self._largest: dict[int, int] = {}
        self._least: dict[int, int] = {}

    @property
    def newest_step(self) -> int | None:
        """The step, as a number of the run, of the last one; None: there is none."""
        return None if self._newest is None else self._newest[1]

    def step_of(self, name: str) -> int | None:
        """The step of the last one with that name; None: there is none."""
        found = self._named.get(name)
        return None if found is None else found[1]

    def take(self, lives: Sequence[Life], resume: Resume) -> None:
        """Take in what an attempt has saved. The attempts come in order.

        Args:
            lives: of all its ranks.
            resume: where it took the run up.
        """
        saves = list(_saves_of(lives))
        _measure(saves, self._largest)
        if any(_is_part(rank, size_bytes, self._largest) for rank, size_bytes in self._least.items()):
            self._sift()
        for rank, save in saves:
            if save.step:
                self._keep(Checkpoint(save.at_ns, save.step + resume.base, save.name, rank, save.size_bytes))
        if resume.step is None:
            return
        for rank, save in saves:
            if not save.step and save.name in self._named:
                self._keep(Checkpoint(save.at_ns, resume.base, save.name, rank, save.size_bytes))

    def _sift(self) -> None:
        """Something far larger was saved: what is only a part beside it goes."""
        kept, self._kept, self._newest = self._kept, [], None
        self._named.clear()
        self._least.clear()
        for one in kept:
            self._keep(one)

    def _keep(self, one: Checkpoint) -> None:
        if _is_part(one.rank, one.size_bytes, self._largest):
            return
        saved = one.at_ns, one.step
        self._kept.append(one)
        self._named[one.name] = max(self._named.get(one.name, saved), saved)
        self._newest = max(self._newest or saved, saved)
        if one.size_bytes is not None:
            self._least[one.rank] = min(self._least.get(one.rank, one.size_bytes), one.size_bytes)


def checkpoints_of(lives: Sequence[Life]) -> list[tuple[int, int, int]]:
    """(attempt, first step that is not in it, when the last rank had written it) of an attempt's checkpoints, in order.

    Those that were saved before a step hold nothing new and are left out.

    Args:
        lives: of all its ranks.
    """
    largest: dict[int, int] = {}
    _measure(_saves_of(lives), largest)
    written: dict[int, int] = {}
    for rank, save in _saves_of(lives):
        if save.step and not _is_part(rank, save.size_bytes, largest):
            written[save.step] = max(written.get(save.step, save.at_ns), save.at_ns)
    return [(lives[0].attempt, step, at_ns) for step, at_ns in sorted(written.items())]


def _saves_of(lives: Iterable[Life]) -> Iterable[tuple[int, Saved]]:
    return ((life.rank, save) for life in lives for save in life.saves.values())


def _measure(saves: Iterable[tuple[int, Saved]], largest: dict[int, int]) -> None:
    """Take into `largest` of each rank what was saved after a step."""
    for rank, save in saves:
        if save.step and save.size_bytes is not None:
            largest[rank] = max(largest.get(rank, 0), save.size_bytes)


def _is_part(rank: int, size_bytes: int | None, largest: dict[int, int]) -> bool:
    return size_bytes is not None and size_bytes < LEAST_SHARE * largest.get(rank, 0)
