"""Goodput over the time of a run as TensorBoard scalars, by TensorBoard's own writer.

    goodput/run         productive share of the time since the beginning
    goodput/recent      of the last hundredth of the time asked about
    badput/<state>      seconds since the beginning

The step of a scalar is the last step of the run that was kept at that time.
"""

from pathlib import Path
from typing import Final

from trainspan.errors import TrainspanError
from trainspan.relay.goodput.history import RunHistory
from trainspan.relay.goodput.queries import GoodputReport, Window, report

POINTS: Final = 100
_NS: Final = 1_000_000_000


def write_scalars(folder: Path, history: RunHistory, asked: GoodputReport) -> int:
    """Write an event file into `folder`; how many scalars it holds.

    Args:
        folder: a log directory of TensorBoard; made if it is missing.
        history: of the run.
        asked: what was asked about: its window and the extent of the time in it.

    Raises:
        TrainspanError: TensorBoard is not installed, or the folder cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise TrainspanError(
            f"--tensorboard needs the package tensorboard ({error}): pip install tensorboard"
        ) from None
    written = 0
    try:
        writer = EventFileWriter(str(folder))
        for unix_s, step, scalars in _scalars(history, asked):
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            writer.add_event(Event(wall_time=unix_s, step=step, summary=Summary(value=values)))
            written += len(values)
        writer.close()
    except OSError as error:
        raise TrainspanError(f"{folder} cannot be written: {error.strerror}") from error
    return written


def _scalars(history: RunHistory, asked: GoodputReport) -> list[tuple[float, int, dict[str, float]]]:
    """(Unix time in s, step, value by tag) of each point."""
    if asked.began_unix_s is None or asked.ended_unix_s is None:
        return []
    began_ns, length_ns = round(asked.began_unix_s * _NS), round((asked.ended_unix_s - asked.began_unix_s) * _NS)
    exclude = asked.window.exclude
    points = []
    for place in range(1, POINTS + 1):
        until_ns = began_ns + length_ns * place // POINTS
        sofar = report(history, Window(began_ns, until_ns, exclude))
        recent = report(history, Window(began_ns + length_ns * (place - 1) // POINTS, until_ns, exclude))
        scalars = {f"badput/{state}": seconds for state, seconds in sofar.badput_s.items()}
        if sofar.goodput is not None:
            scalars["goodput/run"] = sofar.goodput
        if recent.goodput is not None:
            scalars["goodput/recent"] = recent.goodput
        points.append((until_ns / _NS, sofar.last_step or 0, scalars))
    return points
