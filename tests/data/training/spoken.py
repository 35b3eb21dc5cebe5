"""A loop without torch that says what it does; one scenario a process. Prints what trainspan has warned of."""

import asyncio
import json
import os
import sys
import threading
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from types import FrameType
from typing import Any

import trainspan
from trainspan.guard import seen


def loop() -> None:
    trainspan.configure(global_batch_size=8, perf_tag="8b", tags={"team": "vision"}, baseline=False)
    retries: list[int] = []
    trainspan.observe("retries", lambda: len(retries), total=True)
    with trainspan.application():
        with trainspan.phase("tokenize"):
            pass
        with trainspan.init_model():
            pass
        with trainspan.training_loop(target_steps=103):
            for number in range(100, 103):
                with trainspan.step(number=number):
                    with trainspan.phase("data_wait"):
                        pass
                    with trainspan.phase("roll out"):
                        with trainspan.phase("forward"):
                            pass
                        with trainspan.phase("score"):
                            pass
                    trainspan.event("reward", mean=0.5)
                    retries.append(number)
            with trainspan.validation_loop() as validation:
                for _ in range(4):
                    with trainspan.validation_step():
                        pass
                validation.note(set="held-out")
        with trainspan.timed("export", {"format": "onnx"}) as span:
            span.note(files=3)


def callbacks() -> None:
    trainspan.on_application_start()
    trainspan.on_training_loop_start(first_step=7)
    for number in range(2):
        trainspan.on_step_start(number)
        trainspan.on_phase_start("forward")
        trainspan.on_phase_end("forward")
        trainspan.on_phase_start("mine")
        trainspan.on_phase_end("mine", ValueError("not a word of this is told"))
        trainspan.on_step_end()
    trainspan.on_validation_loop_start()
    trainspan.on_validation_step_start()
    trainspan.on_validation_step_end()
    trainspan.on_validation_loop_end()
    trainspan.on_training_loop_end()
    trainspan.on_application_end()


def decorators() -> None:
    @trainspan.phase("plain")
    def plain(value: int, *, more: int) -> int:
        """What it does."""
        return value + more

    @trainspan.phase("waiting")
    async def waiting() -> str:
        await asyncio.sleep(0)
        return "waited"

    def generator() -> object:
        yield 1

    async def async_generator() -> object:
        yield 1

    with trainspan.step():
        assert plain(1, more=2) == 3
        assert (plain.__name__, plain.__doc__) == ("plain", "What it does.")
        assert asyncio.run(waiting()) == "waited"
        for function in (generator, async_generator):
            assert trainspan.phase("x")(function) is function

    @trainspan.step()
    def whole() -> None:
        plain(1, more=1)

    whole()
    whole()


def failures() -> None:
    error = ValueError("secret of the user")
    caught = []
    for scope in (trainspan.timed("t"), trainspan.validation_loop(), trainspan.init("x"), trainspan.phase("p")):
        try:
            with scope:
                raise error
        except ValueError as same:
            caught.append(same)
    with trainspan.step():
        pass
    try:
        with trainspan.step():
            raise error
    except ValueError as same:
        caught.append(same)
    with trainspan.step(), trainspan.phase("data_wait"):
        pass
    try:
        with trainspan.phase("data_wait"):
            next(iter(()))
    except StopIteration:
        pass
    assert all(same is error for same in caught)
    assert len(caught) == 5


def checkpoints() -> None:
    file = Path(sys.argv[2])
    with trainspan.checkpoint_load(file, step=4):
        pass
    for _ in range(2):
        with trainspan.step():
            pass
    with trainspan.checkpoint_save(file):
        file.write_bytes(b"12345")
    with trainspan.checkpoint_save(background=True):
        pass
    with trainspan.step():
        pass
    trainspan.checkpoint_saved()
    writer = threading.Thread(target=lambda: trainspan.checkpoint_save(file).__enter__().__exit__(None, None, None))
    writer.start()
    writer.join()


def end_without_start() -> None:
    trainspan.on_step_end()
    trainspan.on_phase_end("forward")
    trainspan.on_validation_loop_end()


def nested() -> None:
    with trainspan.training_loop(), trainspan.training_loop():
        with trainspan.step(), trainspan.step():
            pass
        with trainspan.validation_loop(), trainspan.testing_loop():
            pass
        with trainspan.checkpoint_save(), trainspan.checkpoint_save():
            pass


def reentered() -> None:
    same = trainspan.phase("mine")
    with trainspan.step():
        with trainspan.phase("mine"), trainspan.phase("mine"):
            pass
        with same, same:
            pass
        with trainspan.phase("forward"), trainspan.phase("forward"):
            pass


def unended() -> None:
    trainspan.on_step_start()
    trainspan.on_step_start()
    trainspan.on_step_end()


def crossed() -> None:
    with trainspan.step():
        trainspan.on_phase_start("a")
        trainspan.on_phase_start("b")
        trainspan.on_phase_end("a")
        trainspan.on_phase_end("b")


def thread() -> None:
    def work() -> None:
        with trainspan.phase("elsewhere"), trainspan.step(), trainspan.validation_loop(), trainspan.timed("upload"):
            trainspan.event("uploaded")

    with trainspan.step():
        pass
    other = threading.Thread(target=work)
    other.start()
    other.join()
    held = trainspan.phase("handed over")
    held.__enter__()
    other = threading.Thread(target=lambda: held.__exit__(None, None, None))
    other.start()
    other.join()
    with trainspan.step():
        pass


def fork() -> None:
    with trainspan.training_loop(), trainspan.step(), trainspan.phase("mine"):
        child = os.fork()
    if child == 0:
        # As a DataLoader's worker: it marks, and does not train.
        with trainspan.phase("decode"):
            trainspan.event("decoded")
        print(json.dumps({"child": seen()}), flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def forked_rank() -> None:
    with trainspan.step(), trainspan.phase("shared"):
        child = os.fork()
    if child == 0:
        # As a rank that multiprocessing has forked: it trains.
        for number in range(2):
            with trainspan.step(number=number), trainspan.phase("shared"), trainspan.phase("own"):
                pass
        print(json.dumps({"child": os.getpid()}), flush=True)
        sys.exit(0)
    os.waitpid(child, 0)


def value() -> None:
    trainspan.event("x", good=1, none=None, bad=[1], long=1 << 70, object=object())
    with trainspan.step():
        pass


def names() -> None:
    with trainspan.step():
        for number in range(40):
            with trainspan.phase(f"item {number}"):
                pass


def much() -> None:
    with trainspan.step():
        for _ in range(20):
            trainspan.event("big", **{f"a{place}": "x" * 1024 for place in range(64)})
    for _ in range(1100):
        with trainspan.step(number=7):
            pass
    for _ in range(60_000):
        trainspan.event("small")
    with trainspan.checkpoint_save():
        pass


def off() -> None:
    with trainspan.application(), trainspan.step(), trainspan.phase("x"), trainspan.timed("t") as span:
        span.note(a=1)
    trainspan.event("x", a=object())
    trainspan.configure(tags={"a": "b"})
    trainspan.on_step_end()
    assert trainspan.phase("x")(loop) is loop
    assert not trainspan.is_enabled()
    assert not trainspan.is_enabled("training.forward")
    loaded = [name for name in sys.modules if name.startswith(("trainspan.record.engine", "opentelemetry"))]
    assert loaded == []


def off_looks_first() -> None:
    for _ in range(1000):  # until it looks for torch no more
        trainspan.step()
    calls: dict[str, list[str]] = {}

    def note(_: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument is not sys.setprofile:
            calls[name].append(argument.__name__)

    for name in trainspan.__all__:
        needed = [
            parameter for parameter in signature(getattr(trainspan, name)).parameters.values() if is_needed(parameter)
        ]
        call = partial(getattr(trainspan, name), *["x"] * len(needed))
        calls[name] = []
        sys.setprofile(note)
        call()
        sys.setprofile(None)
    print(json.dumps({"calls": calls}))


def is_needed(parameter: Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_KEYWORD,
        parameter.VAR_POSITIONAL,
    )


globals()[sys.argv[1]]()
assert "torch" not in sys.modules
print(json.dumps({"scenario": sys.argv[1], "pid": os.getpid(), "warned": seen()}))
