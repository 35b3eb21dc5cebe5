"""Events of `torch.monitor` as events of the rank: a log record of the same name, with the same data.

Nothing in torch tells anything by it but a `Stat` of the script's own (`torch.monitor.Stat`); what a script logs with
`torch.monitor.log_event` arrives without a second call. Cost: 5 µs an event for torch's call of a handler, 25 µs ours.
"""

import atexit
from collections.abc import Callable
from typing import Any, Final

from torch import monitor  # torch 2.4 does not import it by itself

from trainspan.guard import warn_once
from trainspan.record.attributes import values_of
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches

MOST: Final = 10_000
"""Events of one process: the event log has a bound, and a Stat can tell one a second."""


def install(marker: Marker, patches: Patches, tell: Callable[..., None], is_recording: Callable[[], bool]) -> None:
    """Subscribe.

    Args:
        marker: knows the step.
        patches: ends the subscription.
        tell: `tell("user_event", **fields)` appends an event.
        is_recording: whether there is a recording; before it nothing is kept.

    Raises:
        AttributeError: this torch has no monitor.
    """
    told = 0

    def handle(event: Any) -> None:
        # An exception in a handler would reach who logs.
        nonlocal told
        try:
            if is_recording() and told < MOST:
                told += 1
                step = marker.steps() if marker.started() else None
                tell("user_event", name=event.name, step=step, attributes=values_of(event.data, _leave_out))
        except Exception as error:
            warn_once("monitor", f"an event of torch.monitor was not recorded ({type(error).__name__}: {error})")

    subscription = monitor.register_event_handler(handle)

    def end() -> None:
        atexit.unregister(end)
        monitor.unregister_event_handler(subscription)

    # What is still subscribed when the interpreter is gone is let go of by a destructor of C++: a segmentation fault at
    # the end of a process that has compiled something (torch 2.13).
    atexit.register(end)
    patches.on_undo(end)


def _leave_out(name: str) -> None:
    """What is too long for the wire is nobody's mistake: torch has accepted it."""
