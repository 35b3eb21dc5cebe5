"""What lies behind an exception of a library's: the system's own word for why a connection failed."""

from collections.abc import Iterator


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and all it came from: libraries hand on a cause as context, as `reason` or as an argument."""
    pending: list[object] = [error]
    seen: set[int] = set()
    while pending:
        one = pending.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            pending += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]


def word_of_system(error: BaseException) -> str | None:
    """What the system said: `Connection refused`. None: it has said nothing."""
    told = (cause.strerror for cause in causes(error) if isinstance(cause, OSError) and cause.errno)
    return next((words for words in told if words), None)
