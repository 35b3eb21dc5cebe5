"""The scopes of the API as pairs of functions, for frameworks whose hooks are told of a begin and of an end.

`on_<scope>_start` takes what the scope takes, and `on_<scope>_end` the error that ended it, if one did. They need not
be paired: an end without a begin, and a begin of what has not ended, are counted as misuse.
"""

from collections.abc import Callable
from functools import partial

from trainspan import api

_Call = Callable[..., None]


def _pair(name: str) -> tuple[_Call, _Call]:
    make = getattr(api, name)

    def on_start(*arguments: object, **named: object) -> None:
        live = api.callbacks()
        if live is not None:
            live.start(f"on_{name}", partial(make, *arguments, **named))

    def on_end(error: BaseException | None = None) -> None:
        live = api.callbacks()
        if live is not None:
            live.end(f"on_{name}", error)

    for call, end, word in ((on_start, "start", "begins"), (on_end, "end", "has ended")):
        call.__name__ = call.__qualname__ = f"on_{name}_{end}"
        call.__doc__ = f"What `{name}` is around {word}."
    return on_start, on_end


on_application_start, on_application_end = _pair("application")
on_init_model_start, on_init_model_end = _pair("init_model")
on_init_optimizer_start, on_init_optimizer_end = _pair("init_optimizer")
on_init_dataloader_start, on_init_dataloader_end = _pair("init_dataloader")
on_init_distributed_start, on_init_distributed_end = _pair("init_distributed")
on_training_loop_start, on_training_loop_end = _pair("training_loop")
on_step_start, on_step_end = _pair("step")
on_validation_loop_start, on_validation_loop_end = _pair("validation_loop")
on_validation_step_start, on_validation_step_end = _pair("validation_step")
on_testing_loop_start, on_testing_loop_end = _pair("testing_loop")
on_generation_loop_start, on_generation_loop_end = _pair("generation_loop")
on_checkpoint_save_start, on_checkpoint_save_end = _pair("checkpoint_save")
on_checkpoint_load_start, on_checkpoint_load_end = _pair("checkpoint_load")


def on_phase_start(name: str) -> None:
    """What `phase(name)` is around begins."""
    live = api.callbacks()
    if live is not None:
        live.start("on_phase", partial(api.phase, name), name)


def on_phase_end(name: str, error: BaseException | None = None) -> None:
    """What `phase(name)` is around has ended."""
    live = api.callbacks()
    if live is not None:
        live.end("on_phase", error, name)
