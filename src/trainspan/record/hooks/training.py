"""What is trained, told once at the end of the first step: model, optimizer, batch size, precision, strategy.

The event `facts` has `attributes` by their names on the wire. Numbers are those the script has set; none is read from a
tensor. Cost: once, 1 µs a parameter.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from torch import nn

from trainspan import names
from trainspan.guard import warn_once
from trainspan.record.hooks.lifecycle import Lifecycle

_WRAPPERS: Final = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module")
_WRAPPING: Final = (
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.distributed",
    "deepspeed.runtime",
    "megatron.core.distributed",
    "megatron.core.transformer.module",  # what computes in half precision
    "lightning.fabric.wrappers",
    "lightning_fabric.wrappers",
)
_HYPERPARAMETERS: Final = {
    "lr": names.OPTIMIZER_LR,
    "weight_decay": names.OPTIMIZER_WEIGHT_DECAY,
    "momentum": names.OPTIMIZER_MOMENTUM,
    "eps": names.OPTIMIZER_EPS,
    "fused": names.OPTIMIZER_FUSED,
}
_ZERO: Final = "ZeroRedundancyOptimizer"
_FSDP2: Final = "FSDPModule"
_DDP: Final = "DistributedDataParallel"
_CLASS_CHARACTERS: Final = 128


def install(
    lifecycle: Lifecycle,
    lead: Callable[[], Any],
    roots: Callable[[], Iterable[nn.Module]],
    autocast: Callable[[], str | None],
    compiled: Callable[[], bool],
    tell: Callable[..., None],
) -> Callable[[], None]:
    """What is to be called at the end of every step of training.

    Args:
        lifecycle: what has been seen of the beginning; it ends with the first step.
        lead: the optimizer whose steps are the steps of training.
        roots: the models under training.
        autocast: the type that autocast computes in; None where it is off.
        compiled: whether the compiler has been at work.
        tell: `tell("facts", attributes=…)` appends an event.
    """

    def step_ended() -> None:
        if lifecycle.over:
            return
        try:
            lifecycle.end()
            models, optimizer = list(roots()), lead()
            attributes = {
                **_of_model(models, optimizer),
                **_of_optimizer(optimizer),
                names.BATCH_SIZE: _batch_size(lifecycle.loader()),
                names.STRATEGY: _strategy(lifecycle.strategies, models, optimizer),
                names.PRECISION_AUTOCAST: autocast(),
                names.COMPILED: compiled(),
            }
            tell("facts", attributes={name: value for name, value in attributes.items() if value is not None})
        except Exception as error:
            warn_once("facts", f"what is trained is not told ({type(error).__name__}: {error})")

    return step_ended


def _of_model(models: list[nn.Module], optimizer: Any) -> dict[str, Any]:
    """Class, size and precision of the models; of the optimizer's parameters where no model was seen."""
    by_model = {id(model): list(_parameters_of(model)) for model in models}
    parameters = {id(p): p for found in by_model.values() for p in found} or {
        id(p): p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]
    }
    types: Counter[str] = Counter()
    for parameter in parameters.values():
        types[str(parameter.dtype).removeprefix("torch.")] += _size_of(parameter)
    largest = max(models, key=lambda model: sum(map(_size_of, by_model[id(model)])), default=None)
    return {
        names.MODEL_CLASS: None if largest is None else _class_of(largest),
        names.MODEL_PARAMETERS: sum(types.values()),
        names.PRECISION: types.most_common(1)[0][0] if types else None,
    }


def _parameters_of(module: nn.Module) -> Iterator[nn.Parameter]:
    # Not `module.parameters()`, which a model may have replaced by one of its own.
    for inner in nn.Module.modules(module):
        yield from (parameter for parameter in inner._parameters.values() if parameter is not None)


def _size_of(parameter: nn.Parameter) -> int:
    """How many numbers it is; ZeRO-3 of DeepSpeed leaves it empty between its uses."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _class_of(model: nn.Module) -> str:
    """The name of the user's own class, below what wraps it."""
    while True:
        wrapped = next((model._modules[name] for name in _WRAPPERS if _wraps(model, name)), None)
        if wrapped is None:
            break
        model = wrapped
    kind = type(model)
    if _is_a(model, _FSDP2):
        return kind.__name__.removeprefix("FSDP")[:_CLASS_CHARACTERS]  # FSDP2 makes a class of its own
    return kind.__qualname__[:_CLASS_CHARACTERS]


def _wraps(model: nn.Module, name: str) -> bool:
    wraps = type(model).__module__.startswith(_WRAPPING) or _is_a(model, _DDP)
    return wraps and model._modules.get(name) is not None


def _of_optimizer(optimizer: Any) -> dict[str, Any]:
    if optimizer is None:
        return {}
    defaults = getattr(optimizer, "defaults", {})
    found: dict[str, Any] = {names.OPTIMIZER_CLASS: type(optimizer).__qualname__[:_CLASS_CHARACTERS]}
    for name, wire in _HYPERPARAMETERS.items():
        if isinstance(defaults.get(name), int | float):  # a tensor would have to be asked for its value
            found[wire] = defaults[name]
    betas = defaults.get("betas")
    if isinstance(betas, tuple | list) and len(betas) == 2 and all(isinstance(beta, int | float) for beta in betas):
        found[names.OPTIMIZER_BETA1], found[names.OPTIMIZER_BETA2] = betas
    return found


def _batch_size(loader: Any) -> int | None:
    sizes = getattr(loader, "batch_size", None), getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return next((size for size in sizes if isinstance(size, int)), None)


def _strategy(seen: set[str], models: list[nn.Module], optimizer: Any) -> str:
    zero = {"zero"} if _is_a(optimizer, _ZERO) else set()
    fsdp2 = {"fsdp2"} if any(_is_a(model, _FSDP2) for model in models) else set()
    return "+".join(sorted(seen | zero | fsdp2)) or "none"


def _is_a(thing: object, name: str) -> bool:
    """Whether `thing` is of a class of that name, which this process may not have imported."""
    return any(base.__name__ == name for base in type(thing).__mro__)
