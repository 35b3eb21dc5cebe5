"""mmengine, by its `Runner` and the loops of it: the epoch, evaluations, checkpoints, and what its visualizer gets.

A loop by iterations counts no epochs. What mmengine counts are batches, so there is no global step. A checkpoint is put
together in memory: to torch it has no name.
Steps, micro-batches and phases are seen by the hooks of torch.
"""

import functools
import os
from types import ModuleType
from typing import Any

from trainspan.record.bridges.channel import Channel, Evaluations
from trainspan.record.bridges.quietly import telling
from trainspan.record.hooks.checkpoint import mark_calls
from trainspan.record.patches import Patches

_telling = functools.partial(telling, "mmengine")


def install(module: ModuleType, patches: Patches, channel: Channel) -> None:
    """Follow every runner.

    Raises:
        AttributeError, KeyError: this version has no such classes or methods.
    """
    runner, visualizer, by_epoch = module.Runner, module.Visualizer, module.EpochBasedTrainLoop
    evaluations = Evaluations(channel.marker)

    def hook_called(self: Any, name: str, *_: Any, **__: Any) -> None:
        # Before the hooks, as those may evaluate or save.
        if name == "after_train_iter" and isinstance(self.train_loop, by_epoch):
            channel.course.note(None, self.train_loop.epoch)
        elif name in ("after_val_iter", "after_test_iter"):
            evaluations.batch_ended()

    def shown(_: Any, scalar_dict: Any, *__: Any, **___: Any) -> None:
        channel.scalars.log(scalar_dict)

    save, show = vars(runner)["save_checkpoint"], vars(visualizer)["add_scalars"]
    marked = (
        (runner, "call_hook", _telling(vars(runner)["call_hook"], hook_called)),
        (runner, "save_checkpoint", mark_calls(save, "save", _file_of, channel.marker, channel.notes)),
        (visualizer, "add_scalars", _telling(show, shown)),
        *((loop, "run", evaluations.whole(vars(loop)["run"])) for loop in (module.ValLoop, module.TestLoop)),
    )
    for kind, name, method in marked:
        patches.replace(kind, name, method)


def _file_of(args: Any, kwargs: Any) -> Any:
    """Where a checkpoint lies, as `save_checkpoint(out_dir, filename)` has it."""
    place = dict(zip(("out_dir", "filename"), args[1:], strict=False)) | kwargs
    return os.path.join(place["out_dir"], place["filename"])
