"""What `import trainspan` offers: words for what no hook can see. docs/api.md shows them at work.

Each scope is a context manager and a decorator. Where trainspan is off, and while torch.compile traces, a call does
nothing; that costs 0.1 µs. None of it raises, whatever its arguments are: a call that makes no sense is counted in
`trainspan.misuse`, and said once on stderr. An exception in a scope is recorded and passes.
"""

import sys
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from trainspan.record.scope import IDLE, Scope
from trainspan.startup import recorder, start

if TYPE_CHECKING:
    from trainspan.record.callbacks import Callbacks
    from trainspan.record.surface import Surface

_LOOKS = 1000  # for torch, which is seldom imported after the API has been called so often


def _surface() -> "Surface | None":
    """What does the work in a process that may train; None in all others."""
    start()  # where the start-up hook has not: a Python that reads no .pth files
    found = recorder()
    if found is None:
        return None
    try:
        from trainspan.record.surface import Surface

        return Surface(*found, _is_traced, globals())
    except Exception as error:
        from trainspan.guard import warn_once

        warn_once("api", f"what the script says is not recorded: {type(error).__name__}: {error}")
        return None


def _look_for_torch() -> bool:
    """Whether a compiler traces; asked until torch is there, which then answers itself."""
    global _is_compiling, _looks_left  # noqa: PLW0603 - a global is what every call reads
    torch: Any = sys.modules.get("torch")
    _looks_left -= 1
    compiler: Any = getattr(torch, "compiler", None)
    if compiler is not None:
        _is_compiling = getattr(compiler, "is_dynamo_compiling", _no)
        return bool(_is_compiling())
    if not _looks_left:
        _is_compiling = _no
    return False


def _is_traced() -> bool:  # not to be renamed: it is in every pickle of a decorated function, with all that is in it
    return _is_compiling()  # looked up each time: it changes when torch comes


def _no() -> bool:
    return False


_looks_left = _LOOKS
_is_compiling: Callable[[], bool] = _look_for_torch
_look_for_torch()
_live = _surface()


def application() -> Scope:
    """The whole of what the script does, from here to its end. It begins the recording."""
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.application()


def init(name: str) -> Scope:
    """A part of what comes before the loop: a span `training.init.<name>`. The time of `model` is `model_init`."""
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.init(name)


def init_model() -> Scope:
    """Making the model: `init("model")`."""
    return init("model")


def init_optimizer() -> Scope:
    """Making the optimizer: `init("optimizer")`."""
    return init("optimizer")


def init_dataloader() -> Scope:
    """Making the data loaders: `init("data_loader")`."""
    return init("data_loader")


def init_distributed() -> Scope:
    """Setting up the process group: `init("process_group")`."""
    return init("process_group")


def training_loop(first_step: int | None = None, target_steps: int | None = None) -> Scope:
    """The training loop. The first step begins with it.

    Args:
        first_step: number in the run of the first step, where training goes on from a checkpoint.
        target_steps: at which step of the run it is to end.
    """
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.training_loop(first_step, target_steps)


def step(number: int | None = None) -> Scope:
    """One step of training. It ends here, and not where an optimizer's step in it ends.

    A loop with an optimizer of torch's needs it only where its own idea of a step is another one.

    Args:
        number: of the step in the run.
    """
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.step(number)


def phase(name: str) -> Scope:
    """What the rank does inside a step: a phase that is known, as `forward`, or your own word for it.

    Your own is the phase and state `custom.<name>`. It can hold any other phase, whose time is not its own, and last
    over several steps. A process has up to 31 of them; name kinds of work, not its instances.
    """
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.phase(name)


def validation_loop() -> Scope:
    """A loop over validation data. All that is in it, but checkpoints, is the phase and state `validation`."""
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.evaluation("validation")


def validation_step() -> Scope:
    """One batch of a validation, a test or a generation; the loop counts them."""
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.evaluation_step()


def testing_loop() -> Scope:
    """A loop over test data: as `validation_loop`, with a span `training.testing`."""
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.evaluation("testing")


def generation_loop() -> Scope:
    """A loop in which the model generates: all that is in it is the phase `generation`; span `training.generation`."""
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.evaluation("generation")


def checkpoint_save(path: "str | PathLike[str] | None" = None, background: bool = False) -> Scope:
    """Saving a checkpoint. What `torch.save` and others do in it is a part of it.

    Args:
        path: where it lies; None: where what is called in it puts its largest file.
        background: whether the save goes on afterwards, until `checkpoint_saved`.
    """
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.checkpoint("save", path, None, background)


def checkpoint_saved(path: "str | PathLike[str] | None" = None) -> None:
    """Say that a save which went on in the background has succeeded. Its steps count as saved from now on."""
    if _live is not None and not _is_compiling():
        _live.checkpoint_saved(path)


def checkpoint_load(path: "str | PathLike[str] | None" = None, step: int | None = None) -> Scope:
    """Loading a checkpoint.

    Args:
        path: where it lies; None: where what is called in it finds its largest file.
        step: the step of the run that training goes on with.
    """
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.checkpoint("load", path, step, False)


def timed(name: str, attributes: Mapping[str, Any] | None = None) -> Scope:
    """Any stretch of time, on any thread: a span `training.custom.<name>`, which is no phase and no state.

    `with timed("export") as span:` has `span.note(files=3)`.
    """
    if _is_compiling():
        return Scope()
    return IDLE if _live is None else _live.timed(name, attributes)


def event(name: str, /, **attributes: Any) -> None:
    """Something has happened: a log record with that event name, tied to the step.

    Args:
        name: of the event.
        attributes: texts, numbers and truth values; anything else, tensors above all, is refused.
    """
    if _live is not None and not _is_compiling():
        _live.event(name, attributes)


def log(values: str | Mapping[str, Any], value: Any = None, *, step: int | None = None) -> None:
    """Keep the last value of a name, or of each name of a mapping: `training.scalar`. It never waits for a device.

    Args:
        values: the name of the value, or a mapping of names to values.
        value: a number, or a tensor of one element, wherever it is.
        step: what the script calls the step that is newly complete: `training.global_step`.
    """
    if _live is not None and not _is_compiling():
        _live.log(values, value, step)


def counter(name: str, by: float = 1) -> None:
    """Add to a total that only grows: `training.counter`."""
    if _live is not None and not _is_compiling():
        _live.counter(name, by)


def observe(name: str, callback: Callable[[], Any], *, total: bool = False) -> None:
    """Log a number that somebody else keeps: the training thread asks for it at the end of steps, once a second.

    Args:
        name: of the value or counter.
        callback: called without arguments; returns the number.
        total: it only grows, as a count of retries does: `training.counter`, and not `training.scalar`. Where less
            comes than before, it has begun again from zero, and the counter goes on.
    """
    if _live is not None and not _is_compiling():
        _live.observe(name, callback, total)


def processed(*, samples: int | None = None, tokens: int | None = None) -> None:
    """Say how many samples or tokens were worked through. From then on this counts, and not the shapes of batches."""
    if _live is not None and not _is_compiling():
        _live.processed(samples, tokens)


def configure(  # give them by name; a `*` that asked for it would cost 0.1 µs more in each call, for what is left out
    global_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    sequence_length: int | None = None,
    flops_per_sample: float | None = None,
    flops_per_token: float | None = None,
    target_steps: int | None = None,
    target_samples: int | None = None,
    target_tokens: int | None = None,
    first_step: int | None = None,
    first_sample: int | None = None,
    session_tag: str | None = None,
    perf_tag: str | None = None,
    baseline: bool | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Tell what is known only now. It can be called several times; what was told last holds.

    The tags go on everything the rank sends from now on, the rest on the span of its process.

    Args:
        global_batch_size: samples in a step, over all ranks.
        micro_batch_size: samples in a forward of one rank.
        sequence_length: tokens in a sample.
        flops_per_sample: floating-point operations for one sample, forward and backward.
        flops_per_token: the same for one token.
        target_steps: at which step of the run training is to end; likewise `target_samples`, `target_tokens`.
        target_samples: see there.
        target_tokens: see there.
        first_step: number in the run of the first step of this attempt; likewise `first_sample`.
        first_sample: see there.
        session_tag: what is one logical run, over all its restarts; so is the run's own id.
        perf_tag: what is alike in performance.
        baseline: whether others are compared with this run.
        tags: any others: `training.tag.<name>`.
    """
    if _live is not None and not _is_compiling():
        _live.configure(locals())


def is_enabled(kind: str | None = None) -> bool:
    """Whether a call of the API has an effect in this process; with `kind`: whether spans of that name are exported.

    For what only telemetry needs: `if trainspan.is_enabled("training.custom.export"): count_files()`.
    """
    return _live is not None and _live.is_enabled(kind)


def callbacks() -> "Callbacks | None":
    """What the `on_…_start` and `on_…_end` functions call; None where trainspan is off."""
    return None if _live is None or _is_compiling() else _live.callbacks
