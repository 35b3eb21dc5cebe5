"""OpenTelemetry for PyTorch training.

The names below are for what no hook can see. None of them is loaded before it is used: every Python process of a
machine that has trainspan switched on imports this file at its start.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainspan.api import (
        application,
        checkpoint_load,
        checkpoint_save,
        checkpoint_saved,
        configure,
        counter,
        event,
        generation_loop,
        init,
        init_dataloader,
        init_distributed,
        init_model,
        init_optimizer,
        is_enabled,
        log,
        observe,
        phase,
        processed,
        step,
        testing_loop,
        timed,
        training_loop,
        validation_loop,
        validation_step,
    )
    from trainspan.callbacks import (
        on_application_end,
        on_application_start,
        on_checkpoint_load_end,
        on_checkpoint_load_start,
        on_checkpoint_save_end,
        on_checkpoint_save_start,
        on_generation_loop_end,
        on_generation_loop_start,
        on_init_dataloader_end,
        on_init_dataloader_start,
        on_init_distributed_end,
        on_init_distributed_start,
        on_init_model_end,
        on_init_model_start,
        on_init_optimizer_end,
        on_init_optimizer_start,
        on_phase_end,
        on_phase_start,
        on_step_end,
        on_step_start,
        on_testing_loop_end,
        on_testing_loop_start,
        on_training_loop_end,
        on_training_loop_start,
        on_validation_loop_end,
        on_validation_loop_start,
        on_validation_step_end,
        on_validation_step_start,
    )

__version__ = "0.1.0"

__all__ = (
    "application",
    "checkpoint_load",
    "checkpoint_save",
    "checkpoint_saved",
    "configure",
    "counter",
    "event",
    "generation_loop",
    "init",
    "init_dataloader",
    "init_distributed",
    "init_model",
    "init_optimizer",
    "is_enabled",
    "log",
    "observe",
    "on_application_end",
    "on_application_start",
    "on_checkpoint_load_end",
    "on_checkpoint_load_start",
    "on_checkpoint_save_end",
    "on_checkpoint_save_start",
    "on_generation_loop_end",
    "on_generation_loop_start",
    "on_init_dataloader_end",
    "on_init_dataloader_start",
    "on_init_distributed_end",
    "on_init_distributed_start",
    "on_init_model_end",
    "on_init_model_start",
    "on_init_optimizer_end",
    "on_init_optimizer_start",
    "on_phase_end",
    "on_phase_start",
    "on_step_end",
    "on_step_start",
    "on_testing_loop_end",
    "on_testing_loop_start",
    "on_training_loop_end",
    "on_training_loop_start",
    "on_validation_loop_end",
    "on_validation_loop_start",
    "on_validation_step_end",
    "on_validation_step_start",
    "phase",
    "processed",
    "step",
    "testing_loop",
    "timed",
    "training_loop",
    "validation_loop",
    "validation_step",
)


def __getattr__(name: str) -> object:
    """One of the names above, which are plain attributes from then on."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import trainspan.api
    import trainspan.callbacks

    names = globals()
    for public in __all__:
        names[public] = getattr(trainspan.callbacks if public.startswith("on_") else trainspan.api, public)
    # Python looks up an attribute of a module that has this function 20 ns more slowly.
    names.pop("__getattr__", None)
    return names[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
