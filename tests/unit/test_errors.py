"""The tree of errors."""

import inspect

from trainspan import errors


def test_every_error_is_a_trainspan_error() -> None:
    """The command line catches one class; what is outside of it ends in a traceback."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]

    strays = [kind for kind in kinds if not issubclass(kind, errors.TrainspanError)]

    assert len(kinds) > 1
    assert strays == []


def test_every_error_says_when_it_comes() -> None:
    """Who catches one has to know what it stands for."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]

    silent = [kind for kind in kinds if not kind.__doc__]

    assert silent == []
