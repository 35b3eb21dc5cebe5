"""Ray Train, whose workers are actors: processes that Ray starts for anything, gives a rank to, and kills in the end.

In a worker, Ray says which rank of which training it is; a training keeps its name over all its restarts. Where the
training function has ended, the recording is closed, for the process is killed. The controller, an actor of its own,
counts the restarts: the number goes to the workers with the context that Ray sends them anyway.

`ray.train.report` is told as well: what is reported as scalars, and the time it takes as saving a checkpoint, if the
rank gives one, or else as waiting for the others.
"""

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainspan import settings
from trainspan.identity import Assignment, assigned, identify
from trainspan.names import Phase
from trainspan.record.bridges.channel import Channel, Process
from trainspan.record.bridges.quietly import quietly, telling
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.patches import Patches
from trainspan.recording import attempts
from trainspan.recording.places import run_folder
from trainspan.role import Role

_quietly = functools.partial(quietly, "Ray Train")
_telling = functools.partial(telling, "Ray Train")

_ATTEMPT: Final = "_trainspan_attempt"
_COLLECTIVE: Final = int(Phase.COLLECTIVE)
_KILLED_BY: Final = "SIGKILL"


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow the part of Ray Train that is in `module`.

    Raises:
        AttributeError, KeyError: this version is built in another way.
    """
    _PARTS[module.__name__.rpartition(".")[2]](module, patches, channel)


def _follow_controller(module: ModuleType, patches: Patches, channel: Channel) -> None:
    group = module.WorkerGroup

    def count(workers: Any, *_: Any, **__: Any) -> None:
        context = workers._train_run_context
        # Frozen, as it must not change for Ray; what it does not know goes with it all the same.
        object.__setattr__(context, _ATTEMPT, _next_attempt(context))

    # Not where a start begins: while a node is missing, Ray tries one a minute, in vain.
    tell = vars(group)["_init_train_context_on_workers"]
    patches.replace(group, "_init_train_context_on_workers", _telling(tell, count))


def _follow_worker(module: ModuleType, patches: Patches, channel: Channel) -> None:
    # What an actor's methods are, Ray looks up before torch is imported; what they call it does not.
    def begin(context: Any) -> None:
        channel.process.assign(_assignment(context))
        channel.process.begin()

    patches.replace(module, "set_train_context", _telling(vars(module)["set_train_context"], begin))


def _follow_shutdown(module: ModuleType, patches: Patches, channel: Channel) -> None:
    def stop(*_: Any, **__: Any) -> None:
        channel.process.note_stop(_KILLED_BY)

    patches.replace(module, "_shutdown_torch", _telling(vars(module)["_shutdown_torch"], stop))


def _follow_function(module: ModuleType, patches: Patches, channel: Channel) -> None:
    # Not the function itself: who reads where an exception came from would find us there.
    runner, process = module.ThreadRunner, channel.process
    wait = vars(runner)["_monitor_target"]

    def wait_and_close(self: Any) -> None:
        wait(self)
        _quietly(lambda: _end(process, self.get_error()))

    patches.replace(runner, "_monitor_target", functools.update_wrapper(wait_and_close, wait))


def _follow_reports(module: ModuleType, patches: Patches, channel: Channel) -> None:
    report = vars(module.TrainContext)["report"]
    patches.replace(module.TrainContext, "report", told_report(report, channel, _persisted, waits=True))


_PARTS: Final = {
    "worker_group": _follow_controller,
    "worker": _follow_worker,
    "config": _follow_shutdown,
    "thread_runner": _follow_function,
    "context": _follow_reports,
}


def told_report(
    report: Callable[..., None], channel: Channel, persisted: Callable[[Any, Any], Any], *, waits: bool
) -> Callable[..., None]:
    """`report(context, metrics, checkpoint, …)`, marked and told of.

    Args:
        report: of the framework.
        channel: where it goes.
        persisted: `persisted(args, kwargs)`, where the checkpoint lies once it has been reported.
        waits: whether the rank waits in it for the others, also without a checkpoint.
    """
    around = channel.marker.around
    save = mark_calls(report, "save", persisted, channel.marker, channel.notes)

    def report_told(*args: Any, **kwargs: Any) -> None:
        channel.scalars.log(args[1] if len(args) > 1 else kwargs.get("metrics", {}))
        checkpoint = args[2] if len(args) > 2 else kwargs.get("checkpoint")
        if checkpoint is not None:
            save(*args, **kwargs)
        elif waits:
            around(report, _COLLECTIVE, args, kwargs)
        else:
            report(*args, **kwargs)

    return functools.update_wrapper(report_told, report)


def _end(process: Process, error: Any) -> None:
    if error is not None:
        process.note_fatal(getattr(error, "_base_exc", error))
    process.close()


def _assignment(context: Any) -> Assignment:
    run, distributed = context.train_run_context, context.distributed_context
    return Assignment(
        run.run_config.name,
        getattr(run, _ATTEMPT, 0),
        distributed.world_rank,
        distributed.local_rank,
        distributed.node_rank,
        distributed.world_size,
        distributed.local_world_size,
    )


def _next_attempt(context: Any) -> int:
    """Which attempt of the run is about to begin; this controller or an earlier one may have begun some.

    Raises:
        OSError, RecordingRefused: the run folder cannot be used.
    """
    values, _ = settings.load(os.environ)
    first = assigned(identify(values, os.environ, Role.AGENT), Assignment(context.run_config.name), values)
    return attempts.take_next(run_folder(settings.state_dir(values, os.environ), first.run), first.attempt)


def _persisted(args: Any, kwargs: Any) -> Any:
    return getattr(args[0].checkpoint, "path", None)
