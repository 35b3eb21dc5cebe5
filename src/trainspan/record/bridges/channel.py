"""What a bridge has to tell with, and how it marks an evaluation: a call, or a beginning and an end told apart."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from trainspan.identity import Assignment
from trainspan.names import Phase
from trainspan.record.checkpoints import Notes
from trainspan.record.course import Course
from trainspan.record.marker import Marker
from trainspan.record.recorder import Recorder
from trainspan.record.scalars import ScalarLog, scalars_of
from trainspan.record.spans import SpanTeller
from trainspan.recording.layout import SAMPLES_MAX

_VALIDATION = int(Phase.VALIDATION)


class Process(Protocol):
    """This process, of which a framework says what it is, and when that is over."""

    def assign(self, assignment: Assignment) -> None:
        """It is to do that from now on; what it did before is over."""

    def begin(self) -> None:
        """It is recorded from now on, though it may not train yet."""

    def close(self) -> None:
        """It is at its end, though the process may live on, or be killed."""

    def note_fatal(self, error: BaseException) -> None:
        """That has ended it."""

    def note_stop(self, signal: str) -> None:
        """It is about to be stopped by that signal."""


class Channel(NamedTuple):
    """Where a bridge's words go.

    `share_run()`: ranks that are about to be started belong to this run. `stepping`: the optimizer hook's `Stepping`;
    None in a torch that has none. `process`: what this process is.
    """

    marker: Marker
    scalars: ScalarLog
    course: Course
    notes: Notes
    spans: SpanTeller
    share_run: Callable[[], None]
    stepping: Any
    process: Process


def open_channel(recorder: Recorder) -> Channel:
    """The channel of one framework into a recording."""
    marker = recorder.marker
    course = Course(recorder.event, marker.steps)
    notes, spans = recorder.notes, recorder.spans
    return Channel(marker, scalars_of(recorder), course, notes, spans, recorder.share_run, recorder.stepping, recorder)


class Evaluation:
    """An evaluation under way, of a framework that tells of its beginning and its end, and of an exception."""

    def __init__(self, marker: Marker):
        self._marker = marker
        self._outer = -1
        self._batches = 0

    def begin(self) -> None:
        """From here on it is validation; begun again before its end, it goes on."""
        if self._outer < 0:
            self._outer = self._marker.enter(_VALIDATION)
            self._batches = 0

    def batch_ended(self) -> None:
        """One more batch has been evaluated."""
        self._batches += 1

    def end(self) -> None:
        """It is over."""
        outer, self._outer = self._outer, -1
        if outer >= 0:
            self._marker.resume_with(outer, min(self._batches, SAMPLES_MAX))

    def abort(self) -> None:
        """An exception has left it, if it was under way."""
        outer, self._outer = self._outer, -1
        if outer >= 0:
            self._marker.abort(outer)


class Evaluations:
    """Those under way, of a framework in which each is a call, and the end of a batch is told elsewhere."""

    def __init__(self, marker: Marker):
        self._marker = marker
        self._under_way: list[Evaluation] = []

    def whole(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, which is one."""

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            evaluation = Evaluation(self._marker)
            self._under_way.append(evaluation)
            evaluation.begin()
            try:
                result = call(*args, **kwargs)
            except BaseException:
                evaluation.abort()
                raise
            finally:
                self._under_way.remove(evaluation)
            evaluation.end()
            return result

        return functools.update_wrapper(evaluate, call)

    def batch_ended(self) -> None:
        """One more batch has been evaluated."""
        for evaluation in self._under_way:
            evaluation.batch_ended()
