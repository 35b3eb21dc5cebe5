"""The runs of one directory: a pipeline for each, from its first recording until it is over and delivered.

    served      a recording is open, or was less than LINGER_S ago
    finished    everything is told and the summary is written; what the endpoint has not taken yet waits for it, for
                MOST_FINISHED runs at most. What was given to it by then is in the run folder, for `trainspan replay`
    refused     its folder cannot be used just now: its recordings are left as they are, and tried again later
    given up    something nobody thought of was raised: its recordings are left as they are

A relay that stays serves any number of runs, one after the other and at the same time: none may cost what another
needs.
"""

import time
from collections.abc import Callable, Set
from functools import partial
from typing import Final

from trainspan.errors import RecordingRefused, raised_by
from trainspan.relay.pipeline import Pipeline
from trainspan.relay.tail import Sighting

LINGER_S: Final = 0.5
"""How long a run, and the relay, stays after its last recording has closed: a restarted rank finds it there."""

MOST_FINISHED: Final = 16
"""Runs that are over and not delivered, each of which has three threads and eight descriptors."""

_LAST_S: Final = 1.0
"""What its threads may take to end once they have delivered everything; they take a millisecond."""


class Runs:
    """All of them.

    Args:
        open_pipeline: makes the pipeline of a run; it raises RecordingRefused where its folder cannot be used.
        log: told one line at a time what somebody should know.

    Attributes:
        recordings: how many have been taken over.
        refusals: by run, why it is not served just now.
    """

    def __init__(self, open_pipeline: Callable[[str], Pipeline], log: Callable[[str], None]):
        self.recordings = 0
        self.refusals: dict[str, str] = {}
        self._open_pipeline = open_pipeline
        self._log = log
        self._served: dict[str, Pipeline] = {}
        self._active_ns: dict[str, int] = {}
        self._finished: dict[str, Pipeline] = {}
        self._given_up: set[str] = set()

    def take(self, sighting: Sighting, now_ns: int) -> bool:
        """Take over what one look at one recording gave; False: all recordings of its run are to be left."""
        run = sighting.reader.identity.run
        if run in self._given_up:
            return False
        try:
            pipeline = self._pipeline_of(run, now_ns)
            is_new = not pipeline.knows(sighting.reader)
            pipeline.take(sighting, now_ns)
        except (RecordingRefused, OSError) as error:
            self._refuse(run, error)
            return False
        self.recordings += is_new
        self.refusals.pop(run, None)
        return True

    def turn(self, open_runs: Set[str], now_ns: int) -> list[str]:
        """Let every run do what is due, and let go of those that are over; the runs whose recordings are to be left.

        Args:
            open_runs: those with a recording whose process has not ended.
            now_ns: monotonic time.
        """
        served = list(self._served.items())
        left = [run for run, pipeline in served if not self._does(run, partial(pipeline.turn, now_ns))]
        for run, pipeline in list(self._served.items()):
            if run in open_runs or pipeline.busy():
                self._active_ns[run] = now_ns
            elif now_ns - self._active_ns[run] > LINGER_S * 1e9:
                self._finish(run, now_ns)
        for run in list(self._finished):
            if len(self._finished) > MOST_FINISHED or not self._finished[run].is_delivering():
                self._let_go(run, now_ns, 0.0 if self._finished[run].is_delivering() else _LAST_S)
        return left

    def busy(self) -> bool:
        """Whether something is still being cleared up."""
        return any(pipeline.busy() for pipeline in self._served.values())

    def close(self, now_ns: int, timeout_s: float) -> None:
        """Finish every run and deliver what is left within `timeout_s`, all together; what remains is said."""
        for run in list(self._served):
            self._finish(run, now_ns)
        deadline = time.monotonic() + timeout_s
        for run in list(self._finished):
            self._let_go(run, now_ns, max(deadline - time.monotonic(), 0.0))

    def _pipeline_of(self, run: str, now_ns: int) -> Pipeline:
        if run not in self._served:
            if run in self._finished:
                # What it has not delivered, the new one finds on disk.
                self._finished.pop(run).close(now_ns, 0.0)
            self._served[run] = self._open_pipeline(run)
            self._active_ns[run] = now_ns
        return self._served[run]

    def _does(self, run: str, act: Callable[[], None]) -> bool:
        """Whether a run could do it; else it is not served any more."""
        try:
            act()
        except (RecordingRefused, OSError) as error:
            self._refuse(run, error)
            return False
        except Exception as error:  # noqa: BLE001 - what one run brings out is not to end the others
            self._abandon(run)
            self._given_up.add(run)
            said = f"run {run} is given up, and its recordings stay where they are"
            self._log(f"{said}; please report this: {raised_by(error)}")
            return False
        return True

    def _refuse(self, run: str, error: RecordingRefused | OSError) -> None:
        self._abandon(run)
        if run not in self.refusals:
            self._log(f"run {run} is not served: {error}; its recordings stay where they are, and are tried again")
        self.refusals[run] = str(error)

    def _abandon(self, run: str) -> None:
        self._active_ns.pop(run, None)
        pipeline = self._served.pop(run, None)
        if pipeline is not None:
            pipeline.abandon()

    def _finish(self, run: str, now_ns: int) -> None:
        pipeline = self._served[run]
        if self._does(run, partial(pipeline.finish, now_ns)):
            del self._active_ns[run]
            self._finished[run] = self._served.pop(run)

    def _let_go(self, run: str, now_ns: int, timeout_s: float) -> None:
        pipeline = self._finished.pop(run)
        if not pipeline.close(now_ns, timeout_s):
            for sentence in pipeline.untaken():
                self._log(sentence)
