"""The one tree of errors: each says what happened, with the value seen, and what to do."""

import traceback


class TrainspanError(Exception):
    """Base of every error trainspan raises; none is ever raised inside a training process."""


class SettingError(TrainspanError):
    """A `TRAINSPAN_*` variable has a value that is not understood, or is not one we know."""


class InputError(TrainspanError):
    """What was asked about cannot be read, or is not what it should be: a run, a file, a directory."""


class RecordingError(InputError):
    """A file cannot be read as a recording: foreign, of another layout version, torn or hostile."""


class RecordingRefused(TrainspanError):
    """A recording directory or file cannot be used: unwritable, full, or not private to this user."""


class RunNotFound(InputError):
    """No run folder matches what was asked for."""


class DeliveryError(TrainspanError):
    """Telemetry could not be handed to the OTLP endpoint."""


def raised_by(error: Exception) -> str:
    """What was raised and where, for who is to repair it."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{error!r:.200} in {last.filename.rpartition('/')[2]}, line {last.lineno}"
