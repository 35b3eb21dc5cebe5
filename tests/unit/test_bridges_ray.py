"""Ray Train and Ray Tune, against the least that each of them must be; the real ones are in the integration tests."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.followed import Followed
from trainspan.identity import Assignment
from trainspan.record.bridges import ray_data, ray_train, ray_tune

RUN = "llama-7"


def module_of(name: str, **parts: Any) -> ModuleType:
    """A module with these names in it."""
    module = ModuleType(name)
    module.__dict__.update(parts)
    return module


@dataclass(frozen=True)
class TrainRunContext:
    """As Ray Train's: it is sent to every worker, and never changes."""

    run_config: Any


class WorkerGroup:
    """As Ray Train's, in its controller."""

    def __init__(self, context: TrainRunContext):
        self._train_run_context = context

    def _start_impl(self, workers: str | None) -> tuple[str, TrainRunContext]:
        if workers is None:
            raise TimeoutError("no resources")
        return self._init_train_context_on_workers(workers)

    def _init_train_context_on_workers(self, workers: str) -> tuple[str, TrainRunContext]:
        return f"started {workers}", self._train_run_context


@pytest.fixture
def begin_attempt(followed: Followed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Starts the workers of a controller, which is a new one each time it is asked for; the number they are given."""
    monkeypatch.setenv("TRAINSPAN_DIR", str(tmp_path))
    ray_train.install(module_of("ray.worker_group", WorkerGroup=WorkerGroup), followed.patches, followed.channel)
    contexts: dict[str, TrainRunContext] = {}

    def begin(controller: str) -> int:
        context = contexts.setdefault(controller, TrainRunContext(SimpleNamespace(name=RUN)))
        answer, sent = WorkerGroup(context)._start_impl("all")
        assert answer == "started all"
        return number_in(followed, sent)

    return begin


def number_in(followed: Followed, context: TrainRunContext) -> int:
    """The attempt that a worker finds in what it is sent."""
    distributed = SimpleNamespace(world_rank=5, world_size=8, local_rank=1, local_world_size=4, node_rank=1)
    module = module_of("ray.worker", set_train_context=lambda context: context)
    ray_train.install(module, followed.patches, followed.channel)
    module.set_train_context(SimpleNamespace(train_run_context=context, distributed_context=distributed))
    (_, assignment), begun = followed.done[-2:]
    assert begun == ("begin",)
    assert assignment == Assignment(RUN, assignment.attempt, 5, 1, 1, 8, 4)
    return int(assignment.attempt)


def test_workers_that_ray_begins_anew_are_the_next_attempt(begin_attempt: Callable[[str], int]) -> None:
    """The controller alone knows how often it has begun; another controller of the same run goes on counting."""
    numbers = [begin_attempt("first"), begin_attempt("first"), begin_attempt("second")]

    assert numbers == [0, 1, 2]


def test_start_that_finds_no_resources_is_no_attempt(begin_attempt: Callable[[str], int]) -> None:
    """Where a node is lost, Ray tries once a minute until another has come."""
    group = WorkerGroup(TrainRunContext(SimpleNamespace(name=RUN)))

    first = begin_attempt("first")
    with pytest.raises(TimeoutError):
        group._start_impl(None)
    second = begin_attempt("first")

    assert (first, second) == (0, 1)


def test_attempt_that_the_user_has_numbered_is_the_least(
    begin_attempt: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who begins the job anew on a cluster without a common disk counts by himself."""
    monkeypatch.setenv("TRAINSPAN_ATTEMPT", "5")

    numbers = [begin_attempt("first"), begin_attempt("first")]

    assert numbers == [5, 6]


def test_worker_of_a_controller_that_nobody_follows_is_the_first_attempt(followed: Followed) -> None:
    """TRAINSPAN_ENABLED may not have come as far."""
    number = number_in(followed, TrainRunContext(SimpleNamespace(name=RUN)))

    assert number == 0


def test_run_folder_that_cannot_be_used_keeps_no_worker_from_starting(
    followed: Followed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The user's training is Ray's to start, whatever becomes of our number."""
    monkeypatch.setenv("TRAINSPAN_DIR", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    ray_train.install(module_of("ray.worker_group", WorkerGroup=WorkerGroup), followed.patches, followed.channel)

    answer, _ = WorkerGroup(TrainRunContext(SimpleNamespace(name=RUN)))._start_impl("all")

    assert answer == "started all"
    assert "not all that Ray Train does is followed" in capfd.readouterr().err


class WithTraceback(Exception):
    """As Ray Train wraps an exception, to send it."""

    def __init__(self, error: BaseException):
        super().__init__()
        self._base_exc = error


class ThreadRunner:
    """As Ray Train's, without its threads: how the function ended is handed over when that is known."""

    def __init__(self) -> None:
        self.error: WithTraceback | None = None

    def run(self, target: Callable[[], Any]) -> None:
        ended = None
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - as Ray does
            ended = WithTraceback(error)
        self._ended = ended
        self._monitor_target()

    def _monitor_target(self) -> None:
        self.error = self._ended

    def get_error(self) -> WithTraceback | None:
        return self.error


class RunnerThread:
    """As Ray Tune's, likewise: it hands over what has gone wrong."""

    def __init__(self, target: Callable[[], Any]):
        self._target = target
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._target()
        except BaseException as error:  # noqa: BLE001 - as Ray does
            self._propagate_exception(error)

    def _propagate_exception(self, error: BaseException) -> None:
        self.error = error


def frames_of(error: BaseException) -> list[str]:
    """The functions that an exception has come through."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_worker_is_at_its_end_where_its_function_is(followed: Followed) -> None:
    """Ray kills the process of an actor, and nothing runs at its exit: each would seem to have died."""
    ray_train.install(module_of("ray.thread_runner", ThreadRunner=ThreadRunner), followed.patches, followed.channel)
    error = ValueError("no")

    def fail() -> None:
        raise error

    ThreadRunner().run(lambda: None)
    runner = ThreadRunner()
    runner.run(fail)

    assert runner.error is not None
    assert followed.done == [("close",), ("fatal", error), ("close",)]
    assert frames_of(error) == ["run", "fail"]


def test_trial_is_at_its_end_where_its_function_is(followed: Followed) -> None:
    """Tune sends the process away, or to the next trial."""
    ray_tune.install(module_of("ray.util", RunnerThread=RunnerThread), followed.patches, followed.channel)
    error = ValueError("no")

    def fail() -> None:
        raise error

    well, failed = RunnerThread(lambda: None), RunnerThread(fail)
    well.run()
    failed.run()

    assert (well.error, failed.error) == (None, error)
    assert followed.done == [("close",), ("fatal", error), ("close",)]
    assert frames_of(error) == ["run", "fail"]


def test_worker_that_ray_is_about_to_kill_says_so(followed: Followed) -> None:
    """Of the ranks of an attempt one has died, and the others have not."""
    module = module_of("ray.config", _shutdown_torch=lambda destroy_process_group: destroy_process_group)
    ray_train.install(module, followed.patches, followed.channel)

    answer = module._shutdown_torch(destroy_process_group=True)

    assert answer is True
    assert followed.done == [("stop", "SIGKILL")]


class TrainContext:
    """As Ray Train's: it puts what is reported into a storage."""

    checkpoint: Any = None

    def report(self, metrics: Any, checkpoint: Any = None) -> None:
        self.metrics = metrics
        self.checkpoint = SimpleNamespace(path=f"stored/{checkpoint}")


class TrainSession:
    """As Ray Tune's."""

    def report(self, metrics: Any, checkpoint: Any = None) -> None:
        self.reported = metrics, checkpoint


def test_report_is_a_checkpoint_where_the_rank_gives_one(followed: Followed) -> None:
    """Every rank waits in it until all have come, and until the controller has taken the last one."""
    module = module_of("ray.context", TrainContext=TrainContext)
    ray_train.install(module, followed.patches, followed.channel)
    context = TrainContext()

    context.report({"loss": 0.5})
    context.report(metrics={"loss": 0.25, "epoch": 1}, checkpoint="local")
    followed.channel.scalars.close()

    assert followed.tape.written() == [
        "enter collective",
        "resume other",
        "enter checkpoint_save",
        "resume other",
    ]
    [checkpoint] = [event for event in followed.told if event["event"] == "checkpoint"]
    assert (checkpoint["kind"], checkpoint["ok"], checkpoint["blocking"]) == ("save", True, True)
    assert followed.told[-1]["values"] == {"loss": 0.25, "epoch": 1}


def test_report_of_a_trial_is_heard(followed: Followed) -> None:
    """The same, of a session: a trial waits for nobody."""
    module = module_of("ray.session", _TrainSession=TrainSession)
    ray_tune.install(module, followed.patches, followed.channel)
    session = TrainSession()

    session.report({"loss": 0.75})
    session.report({"loss": 0.5}, checkpoint=SimpleNamespace(path="local"))
    session.report({"__duplicate__": True})
    followed.channel.scalars.close()

    assert followed.tape.written() == ["enter checkpoint_save", "resume other"]
    assert followed.told[-1]["values"] == {"loss": 0.5}
    assert session.reported == ({"__duplicate__": True}, None)


class Trainable:
    """As Ray Tune's: one after the other, it can be several trials."""

    def __init__(self, config: Any = None):
        self.config = config

    def reset(self, new_config: Any) -> bool:
        self.config = new_config
        return True

    def step(self) -> dict[str, Any]:
        return {"loss": self.config["lr"] / 2}

    def train(self) -> dict[str, Any]:
        return {**self.step(), "done": False}

    def stop(self) -> str:
        return "stopped"


class FunctionTrainable(Trainable):
    """As Ray Tune's."""

    def _trainable_func(self) -> None:
        """What is tuned."""


def trial(number: int) -> dict[str, Any]:
    """What a trial is configured with."""
    return {"lr": 0.1, "__trial_info__": SimpleNamespace(experiment_name="sweep", trial_id=f"8f3a1_{number:05}")}


def test_each_trial_is_a_run(followed: Followed) -> None:
    """One process may do several; who trains in others is not recorded before it makes an optimizer itself."""
    module = module_of("ray.trainable", Trainable=Trainable)
    ray_tune.install(module, followed.patches, followed.channel)

    trainable = Trainable(trial(0))
    reset = trainable.reset(trial(1))
    stopped = trainable.stop()
    Trainable({"lr": 0.1})

    assert (reset, stopped) == (True, "stopped")
    assert followed.done == [
        ("assign", Assignment("sweep.8f3a1_00000")),
        ("assign", Assignment("sweep.8f3a1_00001")),
        ("close",),
    ]


def test_step_of_a_class_is_heard(followed: Followed) -> None:
    """It reports nothing: it returns it. What Tune adds is no scalar; a function's result is told where it reports."""
    ray_tune.install(module_of("ray.trainable", Trainable=Trainable), followed.patches, followed.channel)

    results = [Trainable({"lr": 0.5}).train(), FunctionTrainable({"lr": 0.1}).train()]
    followed.channel.scalars.close()

    assert results == [{"loss": 0.25, "done": False}, {"loss": 0.05, "done": False}]
    assert followed.told[-1]["values"] == {"loss": 0.25}


def test_step_of_a_class_that_raises_has_ended_the_trial(followed: Followed) -> None:
    """Tune lets the process go as if all were well; the thread of a function tells of its exception itself."""
    ray_tune.install(module_of("ray.trainable", Trainable=Trainable), followed.patches, followed.channel)

    for kind in (Trainable, FunctionTrainable):
        with pytest.raises(KeyError) as raised:
            kind({"momentum": 0.9}).train()
        raised.match("lr")

    [(told, error)] = followed.done
    assert told == "fatal"
    assert frames_of(error)[-2:] == ["train", "step"]


class IterableFromIterator:
    """As Ray Data's: what `iter_torch_batches` gives, which can be iterated again and again."""

    def __init__(self, batches: Callable[[], Iterator[Any]]):
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self.batches()


@pytest.fixture
def batches_of(followed: Followed) -> Callable[[Callable[[], Iterator[Any]]], IterableFromIterator]:
    """Makes what hands out batches, followed."""
    module = module_of("ray.data.iterator", _IterableFromIterator=IterableFromIterator)
    ray_data.install(module, followed.patches, followed.channel)
    return IterableFromIterator


def test_wait_for_a_batch_of_ray_data_is_data_wait(followed: Followed, batches_of: Any) -> None:
    """Its users have no DataLoader; what a batch holds goes with the mark of its arrival."""
    made = [{"x": torch.zeros(size, 3)} for size in (4, 2)]
    batches = batches_of(lambda: iter(made))

    found = [list(batches), list(batches)]

    assert found == [made, made]
    assert followed.tape.written() == ["enter data_wait", "resume other"] * 6
    resumed = [mark.operand for mark in followed.tape.slots() if mark is not None and mark.kind == "resume"]
    assert resumed == [4, 2, 0] * 2


def test_batches_that_are_left_early_are_closed(batches_of: Any) -> None:
    """Ray Data then stops reading ahead, which fills the memory of the cluster."""
    closed = []

    def batches() -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            closed.append(True)

    for batch in batches_of(batches):
        assert batch == 0
        break

    assert closed == [True]


def test_failure_of_ray_data_is_the_users(followed: Followed, batches_of: Any) -> None:
    """It passes through, and the wait ends with it."""

    def batches() -> Iterator[int]:
        yield 1
        raise ValueError("no such block")

    with pytest.raises(ValueError, match="no such block"):
        list(batches_of(batches))

    assert followed.tape.written()[-2:] == ["enter data_wait", "abort other"]


PARTS = {
    ray_train: ("worker_group", "worker", "config", "thread_runner", "context"),
    ray_tune: ("trainable", "util", "session"),
    ray_data: ("iterator",),
}


@pytest.mark.parametrize(("bridge", "part"), [(bridge, part) for bridge, parts in PARTS.items() for part in parts])
def test_ray_of_another_shape_is_refused(followed: Followed, bridge: Any, part: str) -> None:
    """It is said once which one; what else of it fits is followed."""
    with pytest.raises((AttributeError, KeyError)):
        bridge.install(ModuleType(f"ray.{part}"), followed.patches, followed.channel)
