"""What `opentelemetry-instrument` finds of us: it runs this at the start of every Python process below it.

    trainspan_distro         an opentelemetry_distro: which instrumentations are loaded where
    trainspan_configurator   an opentelemetry_configurator: the TracerProvider, where there is training
    trainspan                an opentelemetry_instrumentor: switches recording on; also below somebody else's distro

The names are our own: upstream's are `distro` and `configurator`. Where several distros are installed, the loader takes
the first it comes across. If that is ours in a process that no training job has started, and nobody asked for it by
name, another one acts in its place: to install trainspan beside a service changes nothing in the service.
"""

import os
import sys
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.distro import BaseDistro
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from trainspan import startup
from trainspan.distro.steps import current_step, identity_by_environment
from trainspan.guard import warn_once
from trainspan.role import RANK_PID, Role, role_of
from trainspan.watch import watch

if TYPE_CHECKING:
    from trainspan.record.recorder import Recorder

_SWITCH = "TRAINSPAN_ENABLED"
_OURS = "trainspan."


class TrainspanDistro(BaseDistro):
    """Loads instrumentations in ranks alone; in what launches or helps them, nothing but our own."""

    def _configure(self, **kwargs: Any) -> None:
        self._other = _other("opentelemetry_distro", "OTEL_PYTHON_DISTRO")
        if self._other is not None:
            self._other.configure(**kwargs)
        elif _role() == Role.RANK:
            # The SDK draws exemplars from the module `random`: a script's own metrics would move its random stream.
            os.environ.setdefault("OTEL_METRICS_EXEMPLAR_FILTER", "always_off")

    def load_instrumentor(self, entry_point: EntryPoint, **kwargs: Any) -> None:
        """Load one instrumentation, if this is a process for it."""
        if self._other is not None:
            self._other.load_instrumentor(entry_point, **kwargs)
        elif _role() == Role.RANK or entry_point.value.startswith(_OURS):
            super().load_instrumentor(entry_point, **kwargs)


class TrainspanConfigurator:
    """Sets up a TracerProvider in a rank: at once in one that is known to be one, else when it begins to record."""

    def configure(self, **kwargs: Any) -> None:
        """What the loader calls."""
        other = _other("opentelemetry_configurator", "OTEL_PYTHON_CONFIGURATOR")
        role = _role()
        if other is not None:
            other.configure(**kwargs)
        elif role == Role.RANK:
            _set_up()
        elif role == Role.SPAWNED:
            startup.on_recorder(_set_up_when_it_records)


class TrainspanInstrumentor(BaseInstrumentor):
    """Switches recording on, as TRAINSPAN_ENABLED=1 does; the same variable set to 0 keeps it off."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing: a torch that is not there is not watched, and builds of torch have versions of their own."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        os.environ[_SWITCH] = os.environ.get(_SWITCH, "").strip() or "1"
        startup.start()
        if watch in sys.meta_path:
            current_step(named=_role() == Role.RANK).attach()

    def _uninstrument(self, **kwargs: Any) -> None:
        """Switch off what has not begun: a recording goes on to its end."""
        os.environ[_SWITCH] = "0"
        watch.clear()


def _role() -> str:
    role = role_of(sys.orig_argv, os.environ, os.getpid())
    # A snippet on the command line is a probe of some compiler more often than it trains; it may still.
    return Role.SPAWNED if role == Role.RANK and sys.argv[:1] == ["-c"] else role


def _set_up() -> None:
    """Set the provider up. Loaded here and not above: the SDK costs 100 ms, and a helper has no use for it."""
    try:
        from trainspan.distro import provider

        provider.set_up(current_step(named=_role() == Role.RANK))
    except Exception as error:
        warn_once("provider", f"spans of the script are not exported ({type(error).__name__}: {error})")


def _set_up_when_it_records(recorder: "Recorder") -> None:
    recorder.on_begin(_set_up)
    if recorder.recording:
        _set_up()


def _other(group: str, variable: str) -> Any | None:
    """What another package has for `group`, if it is to act in place of ours."""
    if os.environ.get(variable) or RANK_PID in os.environ or _role() not in (Role.RANK, Role.SPAWNED):
        return None
    found = next((entry for entry in entry_points(group=group) if not entry.value.startswith(_OURS)), None)
    if found is None or identity_by_environment() is not None:
        return None
    return found.load()()
