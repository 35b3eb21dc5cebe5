"""Ray Tune: each trial is a run of its own, named by the experiment and the trial, though one process may do several.

A trial that Tune begins anew is the next attempt of its run. It is recorded once it makes an optimizer: many train in
other processes. A function that is tuned runs in a thread; where it has ended, or Tune stops the trial, the recording
is closed. What is reported is told as that of Ray Train is; of a class, what each of its steps returns, and the
exception that ends one.
"""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trainspan.identity import Assignment
from trainspan.record.bridges.channel import Channel
from trainspan.record.bridges.quietly import quietly, telling
from trainspan.record.bridges.ray_train import told_report
from trainspan.record.patches import Patches

_quietly = functools.partial(quietly, "Ray Tune")
_telling = functools.partial(telling, "Ray Tune")

_TRIAL: Final = "__trial_info__"
"""Where Tune puts what it says of the trial, among what the trial is configured with."""

_OVER: Final = "__duplicate__"

_OF_FUNCTIONS: Final = "_trainable_func"
"""What the class has that makes a trial of a function: that tells by itself what it reports, and of its exception."""

_DONE: Final = "done"


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow the part of Tune that is in `module`.

    Raises:
        AttributeError, KeyError: this version is built in another way.
    """
    _PARTS[module.__name__.rpartition(".")[2]](module, patches, channel)


def _follow_trials(module: ModuleType, patches: Patches, channel: Channel) -> None:
    trainable, process = module.Trainable, channel.process

    def begin(_: Any, config: Any = None, *__: Any, **___: Any) -> None:
        trial = (config or {}).get(_TRIAL)
        if trial is not None:
            process.assign(Assignment(f"{trial.experiment_name}.{trial.trial_id}"))

    def renew(self: Any, new_config: Any, *_: Any, **__: Any) -> None:
        begin(self, new_config)

    patches.replace(trainable, "__init__", _telling(vars(trainable)["__init__"], begin))
    patches.replace(trainable, "reset", _telling(vars(trainable)["reset"], renew))
    patches.replace(trainable, "train", _told_train(vars(trainable)["train"], channel))
    patches.replace(trainable, "stop", _telling(vars(trainable)["stop"], lambda _: process.close()))


def _told_train(train: Callable[[Any], Any], channel: Channel) -> Callable[[Any], Any]:
    """`train(trainable)`, one step of a trial, told of where it is that of a class."""
    added = {*getattr(sys.modules.get("ray.tune.result"), "AUTO_RESULT_KEYS", ()), _DONE}

    def train_and_tell(self: Any) -> Any:
        if hasattr(self, _OF_FUNCTIONS):
            return train(self)
        try:
            result = train(self)
        except BaseException as error:
            channel.process.note_fatal(error)
            raise
        _quietly(lambda: channel.scalars.log({name: its for name, its in result.items() if name not in added}))
        return result

    return functools.update_wrapper(train_and_tell, train)


def _follow_functions(module: ModuleType, patches: Patches, channel: Channel) -> None:
    thread, process = module.RunnerThread, channel.process
    run = vars(thread)["run"]

    def run_and_close(self: Any) -> None:
        run(self)
        _quietly(process.close)

    def note(_: Any, error: BaseException) -> None:
        process.note_fatal(error)

    patches.replace(thread, "run", functools.update_wrapper(run_and_close, run))
    patches.replace(thread, "_propagate_exception", _telling(vars(thread)["_propagate_exception"], note))


def _follow_reports(module: ModuleType, patches: Patches, channel: Channel) -> None:
    session = module._TrainSession
    report = vars(session)["report"]
    told = told_report(report, channel, _persisted, waits=False)

    def report_told(self: Any, metrics: Any, *args: Any, **kwargs: Any) -> None:
        # Tune says itself by a report that the function is over.
        (report if _OVER in metrics else told)(self, metrics, *args, **kwargs)

    patches.replace(session, "report", functools.update_wrapper(report_told, report))


_PARTS: Final = {"trainable": _follow_trials, "util": _follow_functions, "session": _follow_reports}


def _persisted(args: Any, kwargs: Any) -> Any:
    return getattr(args[2] if len(args) > 2 else kwargs.get("checkpoint"), "path", None)
