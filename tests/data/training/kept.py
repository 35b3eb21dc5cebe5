"""A script without torch that keeps its scopes: in objects that are copied, and in pickles that another one loads.

Each scope of the API is made once, goes the way that the arguments say, and is then used. Prints what came out of it.
"""

import asyncio
import copy
import inspect
import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

import trainspan
from trainspan.guard import seen

SCOPES: Mapping[str, Callable[[], Any]] = {
    "application": trainspan.application,
    "init": lambda: trainspan.init("tokenizer"),
    "init_model": trainspan.init_model,
    "init_optimizer": trainspan.init_optimizer,
    "init_dataloader": trainspan.init_dataloader,
    "init_distributed": trainspan.init_distributed,
    "training_loop": lambda: trainspan.training_loop(target_steps=100),
    "step": lambda: trainspan.step(number=7),
    "phase": lambda: trainspan.phase("of its own"),
    "validation_loop": trainspan.validation_loop,
    "validation_step": trainspan.validation_step,
    "testing_loop": trainspan.testing_loop,
    "generation_loop": trainspan.generation_loop,
    "checkpoint_save": lambda: trainspan.checkpoint_save("model.pt", background=True),
    "checkpoint_load": lambda: trainspan.checkpoint_load("model.pt", step=4),
    "timed": lambda: trainspan.timed("export", {"format": "onnx"}),
}


def work(value: int, *, more: int = 1) -> int:
    """What it does."""
    return value + more


async def wait(value: int) -> int:
    """What it waits for."""
    await asyncio.sleep(0)
    return value + 1


def values(most: int) -> Iterator[int]:
    """What it gives."""
    yield from range(most)


class Worker:
    """What is decorated in it is a method."""

    @trainspan.phase("method")
    def work(self, value: int) -> int:
        """What the method does."""
        return value + 1


@trainspan.phase("spawned")
def decorated(value: int) -> int:
    """Found by its name in the process that loads it."""
    return value + 1


def made() -> dict[str, Any]:
    """A scope of every kind."""
    return {name: make() for name, make in SCOPES.items()}


def use(scopes: Mapping[str, Any]) -> None:
    """Enter and leave each of them; then a step, which ends what they have marked."""
    for scope in scopes.values():
        with scope:
            pass
    with trainspan.step():
        pass


def fresh() -> None:
    """As they come."""
    use(made())


def copied() -> None:
    """One by one."""
    scopes = made()
    use({name: copy.copy(scope) for name, scope in scopes.items()})


def copied_deeply() -> None:
    """All are in one object, one of them twice."""
    scopes = made()
    twins, again = copy.deepcopy((scopes, scopes["phase"]))
    assert again is twins["phase"]
    use(twins)


def copied_while_open() -> None:
    """What is copied is the scope, and not the stretch that is open; what is open ends where it is left."""
    with trainspan.phase("of its own") as scope, trainspan.timed("export") as span:
        twins = copy.copy(scope), copy.deepcopy(scope), copy.deepcopy(span)
        span.note(files=3)
    for twin in twins:
        with twin:
            pass
    with trainspan.step():
        pass


def pickled(file: Path) -> None:
    """In the oldest protocol and in the newest."""
    scopes = made()
    file.write_bytes(pickle.dumps(scopes, 0))
    file.with_suffix(".newest").write_bytes(pickle.dumps(scopes, pickle.HIGHEST_PROTOCOL))


def unpickled(file: Path) -> None:
    """What was pickled by another process is used."""
    use(pickle.loads(file.read_bytes()))  # noqa: S301 - of this script


def sent(file: Path) -> None:
    """Functions as Ray sends them: those of the script itself with all that is in them.

    In a protocol that has names in one piece, for who looks into the file.
    """
    functions = {name: scope(work) for name, scope in made().items()}
    more = {"async": trainspan.phase("waiting")(wait), "generator": trainspan.phase("x")(values), "class": Worker}
    file.write_bytes(cloudpickle.dumps((functions, more), protocol=3))


def received(file: Path) -> None:
    """They are what they were, and are called."""
    functions, more = pickle.loads(file.read_bytes())  # noqa: S301 - of this script
    for function in functions.values():
        assert (function.__name__, function.__doc__) == ("work", "What it does.")
        assert str(inspect.signature(function)) == "(value: int, *, more: int = 1) -> int"
        assert function(1, more=2) == 3
    with trainspan.step():
        pass
    assert inspect.iscoroutinefunction(more["async"])
    assert asyncio.run(more["async"](1)) == 2
    assert inspect.isgeneratorfunction(more["generator"])
    assert list(more["generator"](2)) == [0, 1]
    assert more["class"].work.__doc__ == "What the method does."
    assert more["class"]().work(1) == 2
    with trainspan.step():
        pass


def spawned() -> None:
    """A function goes to another process by its name, and back."""
    assert pickle.loads(pickle.dumps(decorated)) is decorated  # noqa: S301 - pickled in this line
    assert copy.deepcopy(decorated) is decorated
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(decorated, [1, 2]) == [2, 3]


if __name__ == "__main__":
    globals()[sys.argv[1]](*map(Path, sys.argv[2:]))
    assert "torch" not in sys.modules
    print(json.dumps({"scenario": sys.argv[1], "pid": os.getpid(), "warned": seen()}))
