"""Calls the whole API with what it does not take; one scenario a process. Prints what was raised, and what was said."""

import inspect
import json
import math
import os
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import trainspan
from trainspan.guard import seen
from trainspan.record.scope import Scope


class Hostile:
    """Raises whatever is asked of it, as a proxy does whose object is not there yet."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("asked")

    __str__ = __repr__ = __bool__ = __len__ = __iter__ = __float__ = __int__ = __index__ = _refuse
    __eq__ = __hash__ = __call__ = __fspath__ = __format__ = _refuse


class Torn(Mapping[str, Any]):
    """A mapping that cannot be read."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("torn")

    def __len__(self) -> int:
        return 1


class Text(str):
    """A text by its type, that fails as one."""

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("asked")

    __getitem__ = __str__ = __repr__ = __len__ = __iter__ = _refuse


def fails() -> None:
    raise RuntimeError("called")


ODD: list[Any] = [
    *(None, True, 5, -1, 1 << 70, math.nan, math.inf, 2.5, 1j, "", "x", "\ud800\0", "long" * 1000, b"\xff\0", ()),
    *([], ["x"], {}, {1: 2}, {"x": object()}, {"": 1, "long" * 1000: 1}, {"name": 1, "self": 2}, set(), range(3)),
    *(UserDict(x=1), MappingProxyType({"x": 1}), Torn(), Text("x"), {Text("x"): Text("y")}, Hostile(), Hostile),
    *({"x": Hostile()}, object(), int, len, fails, lambda: 1, print, ValueError("x"), ValueError, staticmethod(fails)),
]

raised: list[str] = []


def attempt(what: str, call: Callable[[], Any]) -> Any:
    """What `call` returns; noted if it raises."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what must not come
        raised.append(f"{what}: {type(error).__name__}")
        return None


def use(what: str, scope: Any) -> None:
    """Everything that a scope can do."""

    def entered() -> None:
        with scope as same:
            assert same is scope
            same.note(x=1, self=2, name=3, attributes=4, bad=Hostile())

    def decorated() -> None:
        assert scope(lambda value: value + 1)(1) == 2

    attempt(f"with {what}", entered)
    attempt(f"@{what}", decorated)
    for odd in (5, None, int, staticmethod(fails), Hostile()):
        attempt(f"@{what} of {type(odd).__name__}", partial(given_back, scope, odd))


def given_back(scope: Any, odd: object) -> None:
    assert scope(odd) is odd


def call_all() -> None:
    """Each function, with each odd object as each of its arguments."""
    for name in trainspan.__all__:
        function = getattr(trainspan, name)
        for parameter in inspect.signature(function).parameters.values():
            for number, odd in enumerate(ODD):
                given, named = given_for(function, parameter, odd)
                what = f"{name}({parameter.name}=#{number} {type(odd).__name__})"
                result = attempt(what, partial(function, *given, **named))
                if isinstance(result, Scope):
                    use(what, result)
    with trainspan.step():  # the callbacks that were asked for something are asked now
        pass


def given_for(function: Any, odd_one: inspect.Parameter, odd: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a call in which `odd_one` is odd, and the others that must be given are sound."""
    if odd_one.kind is odd_one.VAR_POSITIONAL:
        return [odd], {}
    if odd_one.kind is odd_one.VAR_KEYWORD:
        name = [] if function.__name__.startswith("on_") else ["x"]
        return name, {"name": odd, "self": odd, "kind": odd, "number": odd, "x": odd}
    given, named = [], {}
    for parameter in inspect.signature(function).parameters.values():
        value = odd if parameter.name == odd_one.name else (lambda: 1) if parameter.name == "callback" else "x"
        if parameter.default is not parameter.empty and parameter.name != odd_one.name:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            given.append(value)
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            named[parameter.name] = value
    return given, named


NOT_A_NUMBER: Any = "x"
LIST: Any = []
FIVE: Any = 5
NOTHING: Any = None
WRONG: dict[str, Callable[[], Any]] = {
    "configure(tags)": lambda: trainspan.configure(tags=NOT_A_NUMBER),
    "configure(global_batch_size)": lambda: trainspan.configure(global_batch_size=NOT_A_NUMBER),
    "configure(flops_per_token)": lambda: trainspan.configure(flops_per_token=math.nan),
    "configure(perf_tag)": lambda: trainspan.configure(perf_tag=LIST),
    "configure(baseline)": lambda: trainspan.configure(baseline=NOT_A_NUMBER),
    "training_loop(first_step)": lambda: trainspan.training_loop(first_step=-1),
    "training_loop(target_steps)": lambda: trainspan.training_loop(target_steps=NOT_A_NUMBER),
    "step(number)": lambda: trainspan.step(NOT_A_NUMBER),
    "step(number) beyond 64 bits": lambda: trainspan.step(1 << 70),
    "phase(name)": lambda: trainspan.phase(FIVE),
    "init(name)": lambda: trainspan.init(NOTHING),
    "timed(name)": lambda: trainspan.timed(LIST),
    "timed(attributes)": lambda: trainspan.timed("x", FIVE),
    "timed(attributes) torn": lambda: trainspan.timed("x", Torn()),
    "event(name)": lambda: trainspan.event(FIVE),
    "log(values)": lambda: trainspan.log(FIVE),
    "log(name, value)": lambda: trainspan.log("x", "y"),
    "log({name: value})": lambda: trainspan.log({"x": "y", "z": 1}),
    "log({5: value})": lambda: trainspan.log({FIVE: 1}),
    "log(values, number)": lambda: trainspan.log({"x": 1}, 100),
    "log(step)": lambda: trainspan.log({"x": 1}, step=NOT_A_NUMBER),
    "counter(name)": lambda: trainspan.counter(LIST),
    "counter(by)": lambda: trainspan.counter("x", NOT_A_NUMBER),
    "counter(by) backwards": lambda: trainspan.counter("x", -1),
    "counter(by) without end": lambda: trainspan.counter("x", math.inf),
    "observe(name)": lambda: trainspan.observe(LIST, lambda: 1),
    "observe(callback)": lambda: trainspan.observe("x", FIVE),
    "observe(total)": lambda: trainspan.observe("x", lambda: 1, total=NOT_A_NUMBER),
    "processed(samples)": lambda: trainspan.processed(samples=NOT_A_NUMBER),
    "processed(tokens) backwards": lambda: trainspan.processed(tokens=-1),
    "checkpoint_save(path)": lambda: trainspan.checkpoint_save(FIVE),
    "checkpoint_save(background)": lambda: trainspan.checkpoint_save(background=NOT_A_NUMBER),
    "checkpoint_load(step)": lambda: trainspan.checkpoint_load(step=NOT_A_NUMBER),
    "checkpoint_saved(path)": lambda: trainspan.checkpoint_saved(FIVE),
    "is_enabled(kind)": lambda: trainspan.is_enabled(FIVE),
    "on_step_end(error)": lambda: trainspan.on_step_end(NOT_A_NUMBER),
    "on_step_start(…)": lambda: trainspan.on_step_start(1, 2, 3, no_such=4),
    "on_phase_start(name)": lambda: trainspan.on_phase_start(FIVE),
    "@phase(…) of a class": lambda: trainspan.phase("x")(Torn),
    "@step() of what is no function": lambda: trainspan.step()(FIVE),
}


def everything() -> None:
    call_all()
    print(json.dumps({"raised": raised}))


def wrong() -> None:
    trainspan.on_step_start()
    counted = {}
    for name, call in WRONG.items():
        before = seen()
        call()
        counted[name] = {cause: count - before.get(cause, 0) for cause, count in seen().items()}
        counted[name] = {cause: count for cause, count in counted[name].items() if count}
    print(json.dumps({"counted": counted}))


def mappings() -> None:
    with trainspan.step():
        with trainspan.timed("x", UserDict(format="onnx")):
            pass
        trainspan.log(MappingProxyType({"loss": 0.5}))
        trainspan.configure(tags=UserDict(team="vision"))
        trainspan.event("done", name="abc", self="me", step=7)
    print(json.dumps({"warned": seen()}))


if __name__ == "__main__":
    os.chdir(os.environ["TMPDIR"])  # a path that is a mistake is one there
    globals()[sys.argv[1]]()
