"""Follows frameworks once they are imported, and has FLOPs counted where that is wished."""

import sys
from importlib import import_module
from types import ModuleType

from trainspan.guard import warn_once
from trainspan.record.patches import Patches
from trainspan.record.recorder import Recorder
from trainspan.watch import watch

_RAY_TRAIN = "ray.train.v2._internal.execution"
_LAUNCHER = "strategies.launchers.subprocess_script"

BRIDGES = {
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
    "lightning.fabric.fabric": "lightning_fabric",
    "lightning_fabric.fabric": "lightning_fabric",
    f"lightning.fabric.{_LAUNCHER}": "lightning_launcher",
    f"lightning.pytorch.{_LAUNCHER}": "lightning_launcher",
    f"lightning_fabric.{_LAUNCHER}": "lightning_launcher",
    f"pytorch_lightning.{_LAUNCHER}": "lightning_launcher",
    "transformers.trainer": "transformers",
    "accelerate.accelerator": "accelerate",
    "deepspeed.runtime.engine": "deepspeed",
    "megatron.core.optimizer.optimizer": "megatron",
    "megatron.core.optimizer.layer_wise_optimizer": "megatron",
    "megatron.core.dist_checkpointing": "megatron_checkpoint",
    "fastai.learner": "fastai",
    "ignite.engine.engine": "ignite",
    "keras.src.backend.torch.trainer": "keras",
    "keras.src.saving.saving_lib": "keras_checkpoint",
    "mmengine.runner.runner": "mmengine",
    "ultralytics.engine.trainer": "ultralytics",
    "ultralytics.engine.validator": "ultralytics",
    "ray.train.torch.config": "ray_train",
    f"{_RAY_TRAIN}.context": "ray_train",
    f"{_RAY_TRAIN}.worker_group.thread_runner": "ray_train",
    f"{_RAY_TRAIN}.worker_group.worker": "ray_train",
    f"{_RAY_TRAIN}.worker_group.worker_group": "ray_train",
    "ray.data.iterator": "ray_data",
    "ray.tune.trainable.trainable": "ray_tune",
    "ray.air._internal.util": "ray_tune",
    "ray.train._internal.session": "ray_tune",
    **dict.fromkeys(
        (
            "stable_baselines3.common.on_policy_algorithm",
            "stable_baselines3.common.off_policy_algorithm",
            "stable_baselines3.common.base_class",
            "stable_baselines3.common.evaluation",
        ),
        "stable_baselines3",
    ),
    "torchft.optim": "torchft",
    "torchmetrics.metric": "torchmetrics",
    "torchmetrics.collections": "torchmetrics",
    "torchtitan.observability.structured_logger.structured_logging": "torchtitan",
}
"""By the module that a framework's own class is in: a bridge must not be imported before its framework."""


def count_flops(recorder: Recorder) -> None:
    """Have torch count the FLOPs of one step, if that is wished; hooks that are placed later are looked into."""
    if recorder.settings.count_flops:
        flops = import_module("trainspan.record.flop_count")
        count = flops.FlopCount(recorder.marker, recorder.event)
        recorder.marker = recorder.marker._replace(around=count.around)
        recorder.on_begin(count.begin)
        recorder.step_ends.append(count.step_ended)


def watch_frameworks(recorder: Recorder, patches: Patches) -> None:
    """Follow each framework once it is imported."""

    def follow(name: str, package: ModuleType) -> None:
        try:
            channel = import_module("trainspan.record.bridges.channel").open_channel(recorder)
            import_module(f"trainspan.record.bridges.{name}").install(package, patches, channel)
        except Exception as error:
            version = getattr(sys.modules.get(package.__name__.partition(".")[0]), "__version__", "of unknown version")
            what = f"{type(error).__name__}: {error}"
            warn_once(
                f"bridge.{name}",
                f"{name} {version} is not followed ({what}): only what torch itself does in it is seen",
            )

    for module, name in BRIDGES.items():
        watch.add(module, lambda package, _, name=name: follow(name, package))  # type: ignore[misc]  # bound here
