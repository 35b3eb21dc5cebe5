"""Bridges into frameworks, against the least that each of them must be; the real ones are in the integration tests."""

import copy
import json
import logging
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.unit.followed import Followed
from tests.unit.tapes import Tape
from trainspan.record.bridges import (
    accelerate,
    deepspeed,
    lightning,
    lightning_fabric,
    lightning_launcher,
    megatron,
    megatron_checkpoint,
    torchtitan,
    transformers,
)
from trainspan.record.bridges.channel import Evaluation

DATA = Path(__file__).resolve().parents[1] / "data"


class Callback:
    """As Lightning's."""


class LightningTrainer:
    """As Lightning's."""

    sanity_checking = False
    global_step = 101
    current_epoch = 3

    def __init__(self, callbacks: Any = None):
        self.callbacks = [*(callbacks or [])]
        self._logger_connector = SimpleNamespace(_callback_metrics={"loss": 0.5})

    def save_checkpoint(self, filepath: str) -> str:
        return f"saved {filepath}"


@pytest.fixture
def package(followed: Followed) -> ModuleType:
    """A package as Lightning, followed."""
    module = ModuleType("framework")
    module.__dict__.update(Trainer=LightningTrainer, Callback=Callback)
    lightning.install(module, followed.patches, followed.channel)
    return module


def test_every_trainer_has_the_callback_first(package: ModuleType) -> None:
    """Those that save on validation come last by Lightning's own order; what they do then is no validation any more."""
    user = Callback()

    trainer = package.Trainer(callbacks=[user])

    assert isinstance(trainer.callbacks[0], Callback)
    assert trainer.callbacks[1:] == [user]


def test_lightning_is_heard(followed: Followed, package: ModuleType) -> None:
    """Position once a step, scalars at most once a second, validation from its start to its end."""
    trainer = package.Trainer()
    callback = trainer.callbacks[0]

    followed.step()
    callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_train_batch_end(trainer, None, None, None, 1)
    callback.on_validation_start(trainer, None)
    callback.on_validation_end(trainer, None)
    followed.channel.scalars.close()

    assert followed.told[0] == {"event": "progress", "step": 0, "global_step": 101, "epoch": 3}
    assert [event["values"] for event in followed.told[1:]] == [{"loss": 0.5}]
    assert followed.tape.written()[2:] == ["enter validation", "resume other"]


def test_exception_leaves_a_validation(followed: Followed, package: ModuleType) -> None:
    """Lightning tells of it; a phase that nobody ends would swallow the rest of the run."""
    callback = package.Trainer().callbacks[0]

    callback.on_validation_start(None, None)
    callback.on_exception(None, None, ValueError())
    callback.on_exception(None, None, ValueError())

    assert followed.tape.written() == ["enter validation", "abort other"]


def test_sanity_check_is_not_logged(followed: Followed, package: ModuleType) -> None:
    """Two batches through an untrained model: Lightning itself throws their metrics away."""
    trainer = package.Trainer()
    trainer.sanity_checking = True

    trainer.callbacks[0].on_validation_end(trainer, None)
    followed.channel.scalars.close()

    assert followed.told == []


def test_lightning_that_is_built_otherwise_goes_on(
    followed: Followed, package: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another version keeps its metrics elsewhere: that is said once, and raises nothing."""
    trainer = package.Trainer()
    del trainer._logger_connector

    trainer.callbacks[0].on_train_end(trainer, None)
    trainer.callbacks[0].on_train_end(trainer, None)

    assert capsys.readouterr().err.count("trainspan:") <= 1
    assert followed.told == []


def test_callback_can_be_sent_to_a_spawned_rank(package: ModuleType) -> None:
    """The trainer is pickled for it, and the way into this process's recording is not."""
    callback = package.Trainer().callbacks[0]

    copied, sent = copy.copy(callback), pickle.loads(pickle.dumps(callback))  # noqa: S301 - our own bytes

    assert type(copied) is type(sent) is type(callback)


def test_callback_that_arrives_where_nothing_is_recorded_does_nothing() -> None:
    """It is then what every callback is that overrides nothing."""
    module = ModuleType("elsewhere")
    module.__dict__["Callback"] = Callback
    sys.modules["elsewhere"] = module

    callback = lightning.callback_of("elsewhere")
    del sys.modules["elsewhere"]

    assert type(callback) is Callback


class _SubprocessScriptLauncher:
    """As Lightning's."""

    def _call_children_scripts(self) -> str:
        return "started"


def test_ranks_that_lightning_starts_belong_to_its_run(followed: Followed) -> None:
    """They inherit the environment that is there when they are started."""
    module = ModuleType("launchers")
    module.__dict__["_SubprocessScriptLauncher"] = _SubprocessScriptLauncher
    lightning_launcher.install(module, followed.patches, followed.channel)

    answer = _SubprocessScriptLauncher()._call_children_scripts()

    assert (answer, followed.shared) == ("started", 1)


class CallbackHandler:
    """As Hugging Face's."""

    def __init__(self, callbacks: list[Any]):
        self.callbacks = [kind() for kind in callbacks]

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback())


class TransformersTrainer:
    """As Hugging Face's."""

    state = SimpleNamespace(global_step=40, epoch=1.0)

    def __init__(self, callbacks: Any = ()):
        self.callback_handler = CallbackHandler([*callbacks])

    def evaluation_loop(self, fails: bool) -> str:
        if fails:
            raise ValueError("no")
        return "metrics"

    def _get_output_dir(self, trial: Any) -> str:
        return "runs" if trial is None else f"runs/{trial}"

    def _save_checkpoint(self, model: Any, trial: Any) -> str:
        return f"saved {model} {trial}"

    def _load_from_checkpoint(self, resume_from_checkpoint: str) -> str:
        return f"loaded {resume_from_checkpoint}"


@pytest.fixture
def hugging_face(followed: Followed) -> ModuleType:
    """A module as `transformers.trainer`, followed."""
    module = ModuleType("transformers.trainer")
    module.__dict__.update(Trainer=TransformersTrainer, TrainerCallback=Callback, DEFAULT_CALLBACKS=[])
    transformers.install(module, followed.patches, followed.channel)
    return module


@pytest.mark.parametrize(("epoch", "number"), [(0.25, 0), (1.0, 0), (1.01, 1), (2.0, 1), (0.0, 0), (None, None)])
def test_epoch_of_hugging_face_is_the_one_a_step_belongs_to(
    followed: Followed, hugging_face: ModuleType, epoch: float | None, number: int | None
) -> None:
    """It counts in fractions, and a whole number is the end of the one before."""
    [kind] = hugging_face.DEFAULT_CALLBACKS
    followed.step()

    kind().on_step_end(None, SimpleNamespace(global_step=7, epoch=epoch), None)

    assert followed.told == [{"event": "progress", "step": 0, "global_step": 7, "epoch": number}]


@pytest.mark.parametrize("is_default", [True, False])
def test_every_trainer_of_hugging_face_calls_back_once(hugging_face: ModuleType, is_default: bool) -> None:
    """A package may put a list of its own in place of the defaults, as ms-swift does."""
    [kind] = hugging_face.DEFAULT_CALLBACKS

    trainer = hugging_face.Trainer([Callback, *hugging_face.DEFAULT_CALLBACKS] if is_default else [Callback])

    assert [type(callback) for callback in trainer.callback_handler.callbacks] == [Callback, kind]


def test_evaluation_of_hugging_face_is_validation(followed: Followed, hugging_face: ModuleType) -> None:
    """Also one that fails, and what it answers and raises is its own."""
    trainer = hugging_face.Trainer()

    answer = trainer.evaluation_loop(fails=False)
    with pytest.raises(ValueError, match="no"):
        trainer.evaluation_loop(fails=True)

    marks = ["enter validation", "resume other", "enter validation", "abort other"]
    assert (answer, followed.tape.written()) == ("metrics", marks)


def test_checkpoint_of_hugging_face_is_its_directory(followed: Followed, hugging_face: ModuleType) -> None:
    """What is loaded has the name under which it was saved."""
    trainer = hugging_face.Trainer()

    answers = trainer._save_checkpoint("net", trial=None), trainer._load_from_checkpoint("runs/checkpoint-40")

    assert answers == ("saved net None", "loaded runs/checkpoint-40")
    save, load = followed.told
    assert (save["kind"], load["kind"]) == ("save", "load")
    assert save["file"] == load["file"]


class Accelerator:
    """As Accelerate's, which numbers its checkpoints where it is asked to."""

    def __init__(self, project_dir: str, *, numbered: bool):
        self.project_dir = project_dir
        self.project_configuration = SimpleNamespace(automatic_checkpoint_naming=numbered)
        self.save_iteration = 0

    def log(self, values: Any, step: int | None = None, log_kwargs: Any = None) -> tuple[Any, ...]:
        return values, step, log_kwargs

    def save_state(self, output_dir: str | None = None) -> str | None:
        self.save_iteration += 1
        return output_dir

    def load_state(self, input_dir: str | None = None) -> str | None:
        return input_dir


@pytest.fixture
def accelerator_class(followed: Followed) -> Any:
    """A class as Accelerate's, followed."""
    module = ModuleType("accelerate.accelerator")
    module.__dict__["Accelerator"] = Accelerator
    accelerate.install(module, followed.patches, followed.channel)
    return Accelerator


def test_accelerate_logs_as_it_was_asked(followed: Followed, accelerator_class: Any) -> None:
    """Positions, keywords and answers are passed on as they come."""
    accelerator = accelerator_class("", numbered=False)

    answers = accelerator.log({"loss": 1}), accelerator.log({"loss": 2}, 7), accelerator.log(values={"lr": 3}, step=8)
    followed.channel.scalars.close()

    assert answers == (({"loss": 1}, None, None), ({"loss": 2}, 7, None), ({"lr": 3}, 8, None))
    [event] = followed.told
    assert (event["values"], event["global_step"]) == ({"loss": 2.0, "lr": 3.0}, 8)


def test_numbered_checkpoints_have_names(followed: Followed, accelerator_class: Any, tmp_path: Any) -> None:
    """Nobody gives a directory there; the newest is loaded, by number and not by spelling."""
    accelerator = accelerator_class(str(tmp_path), numbered=True)
    for number in (0, 9, 10):
        (tmp_path / "checkpoints" / f"checkpoint_{number}").mkdir(parents=True)
    accelerator.save_iteration = 10

    accelerator.save_state()
    accelerator.load_state()
    accelerator.load_state(str(tmp_path / "checkpoints" / "checkpoint_10"))

    assert len({event["file"] for event in followed.told}) == 1
    assert [event["kind"] for event in followed.told] == ["save", "load", "load"]


@pytest.fixture
def titan(followed: Followed) -> logging.Logger:
    """A structured logger as torchtitan's, followed."""
    logger = logging.getLogger(f"{torchtitan.LOGGER}.of_a_test")
    logger.setLevel(logging.INFO)
    module = ModuleType("torchtitan.observability.structured_logger.structured_logging")
    module.__dict__["_structured_logger"] = logger
    torchtitan.install(module, followed.patches, followed.channel)
    return logger


def test_torchtitan_is_heard(followed: Followed, titan: logging.Logger) -> None:
    """Records of torchtitan 0.3.0: building, two steps of a run resumed after 100, an evaluation that fails."""
    for line in (DATA / "torchtitan" / "records-0.3.0.jsonl").read_text().splitlines():
        fields = json.loads(line)
        if fields["log_type_name"] == "optim_end":
            followed.step()
        titan.info("as torchtitan says it", extra=fields)
    followed.channel.scalars.close()

    spans = [(event["name"], event["ok"]) for event in followed.told if event["event"] == "span"]
    assert spans == [
        ("torchtitan.torch_distributed_init", True),
        ("torchtitan.model_parallelism_init", True),
        ("torchtitan.Trainer.Config.build", True),
        ("torchtitan.gc_collect", True),
        ("torchtitan.eval", False),
        ("torchtitan.torch_distributed_teardown", True),
    ]
    assert [event for event in followed.told if event["event"] == "progress"] == [
        {"event": "progress", "step": 0, "global_step": 101, "epoch": None}
    ]
    assert followed.told[-1]["values"] == {"local_valid_tokens": 2048.0, "global_valid_tokens": 4096.0}


def test_length_of_a_span_is_what_torchtitan_measured(followed: Followed, titan: logging.Logger) -> None:
    """In milliseconds."""
    titan.info("", extra={"log_type_name": "torch_distributed_init_end", "value": 250.0, "step": None})

    [span] = followed.told
    assert span["end_ns"] - span["start_ns"] == 250_000_000


def test_record_of_another_kind_disturbs_nothing(
    followed: Followed, titan: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody may log there, and torchtitan's format may change."""
    titan.info("a text")
    titan.info("", extra={"log_type_name": "fwd_bwd_end"})

    assert followed.told == []
    assert "torchtitan" in capsys.readouterr().err


def test_evaluation_of_a_thread_that_does_not_train_is_nobodys(followed: Followed) -> None:
    """What is entered by nobody is left by nobody."""
    evaluation = Evaluation(followed.marker)
    followed.marker.detach()

    evaluation.begin()
    evaluation.end()
    evaluation.abort()

    assert followed.tape.written() == []


class Fabric:
    """As Lightning's."""

    def log_dict(self, metrics: Any, step: int | None = None) -> tuple[Any, ...]:
        return metrics, step

    def log(self, name: str, value: Any, step: int | None = None) -> tuple[Any, ...]:
        return self.log_dict(metrics={name: value}, step=step)

    def save(self, path: str, state: Any) -> tuple[str, Any]:
        return path, state


def test_fabric_is_heard(followed: Followed) -> None:
    """What it logs, with its step, and a checkpoint by the name of its file."""
    module = ModuleType("fabric")
    module.__dict__["Fabric"] = Fabric
    lightning_fabric.install(module, followed.patches, followed.channel)
    followed.step()

    answers = Fabric().log("loss", 0.5, step=7), Fabric().save("runs/last.ckpt", {})
    followed.channel.scalars.close()

    save, scalars = followed.told
    assert answers == (({"loss": 0.5}, 7), ("runs/last.ckpt", {}))
    assert (save["kind"], save["ok"]) == ("save", True)
    assert (scalars["values"], scalars["at_step"], scalars["global_step"]) == ({"loss": 0.5}, 0, 7)


class DeepSpeedEngine:
    """As DeepSpeed's, with a checkpoint engine that writes while training goes on."""

    global_steps = 4

    def __init__(self) -> None:
        self.checkpoint_engine = self
        self.pending: Any = None

    def is_decoupled(self) -> bool:
        return True

    def get_commit_info(self) -> Any:
        return self.pending

    def save_checkpoint(self, save_dir: str) -> bool:
        self.pending = SimpleNamespace(save_dir=save_dir, tag="global_step4")
        return True

    def _commit_decoupled_checkpoint(self) -> None:
        self.pending = None

    def load_checkpoint(self, *_: str) -> tuple[None, None]:
        return None, None

    def load_universal_checkpoint(self) -> bool:
        return False

    def backward(self, loss: Any) -> Any:
        return loss

    def _take_model_step(self) -> None:
        raise AssertionError


class MonitorMaster:
    """As DeepSpeed's."""

    def write_events(self, event_list: Any) -> int:
        return len(event_list)


@pytest.fixture
def engine(followed: Followed) -> DeepSpeedEngine:
    """An engine as DeepSpeed's, followed."""
    module = ModuleType("deepspeed.runtime.engine")
    module.__dict__.update(DeepSpeedEngine=DeepSpeedEngine, MonitorMaster=MonitorMaster)
    deepspeed.install(module, followed.patches, followed.channel)
    return DeepSpeedEngine()


def test_decoupled_checkpoint_of_deepspeed_is_one_once_committed(
    followed: Followed, engine: DeepSpeedEngine, tmp_path: Path
) -> None:
    """It is written while training goes on: until then there is nothing to resume from."""
    followed.step()

    assert engine.save_checkpoint(str(tmp_path)) is True
    followed.step()
    engine._commit_decoupled_checkpoint()
    engine._commit_decoupled_checkpoint()

    staged, saved = followed.told
    assert (staged["staging"], staged["blocking"], staged["step"]) == (True, True, 1)
    assert (saved["staging"], saved["blocking"], saved["step"]) == (False, False, 1)
    assert saved["file"] == staged["file"]


def test_deepspeed_that_finds_nothing_to_load_has_loaded_nothing(
    followed: Followed, engine: DeepSpeedEngine, tmp_path: Path
) -> None:
    """Scripts always ask: the first attempt has no checkpoint."""
    answers = engine.load_checkpoint(str(tmp_path)), engine.load_checkpoint(str(tmp_path), "global_step7")

    assert answers == ((None, None), (None, None))
    assert followed.told == []


def test_monitor_of_deepspeed_is_heard(followed: Followed, engine: DeepSpeedEngine) -> None:
    """Whatever tracker it writes to; the engine's own loss needs none."""
    answer = MonitorMaster().write_events([("Train/Samples/lr", 0.01, 640), ("Train/mine", 2, 640)])
    engine.backward(0.5)
    followed.channel.scalars.close()

    [scalars] = followed.told
    assert answer == 2
    assert scalars["values"] == {"Train/Samples/lr": 0.01, "Train/mine": 2.0, "deepspeed.loss": 0.5}


class AsyncRequest(NamedTuple):
    """As Megatron Core's."""

    finalize_fns: list[Callable[[], None]]

    def add_finalize_fn(self, function: Callable[[], None]) -> None:
        self.finalize_fns.append(function)


def test_asynchronous_checkpoint_of_megatron_is_one_once_every_rank_has_written(
    followed: Followed, tmp_path: Path
) -> None:
    """Who schedules the request calls its functions then, many steps later."""

    def save(*_: Any, async_sharded_save: bool = False, **_more: Any) -> AsyncRequest | None:
        return AsyncRequest([]) if async_sharded_save else None

    module = ModuleType("megatron.core.dist_checkpointing")
    module.__dict__.update(save=save, load=lambda state, **_: state)
    module.__dict__["serialization"] = SimpleNamespace(save=save, load=module.load)
    megatron_checkpoint.install(module, followed.patches, followed.channel)
    followed.step()

    request = module.save({}, tmp_path, async_sharded_save=True)
    followed.step()
    for function in request.finalize_fns:
        function()
    module.save({}, checkpoint_dir=tmp_path)

    staged, saved, whole = followed.told
    assert (staged["staging"], staged["step"]) == (True, 1)
    assert (saved["staging"], saved["blocking"], saved["step"]) == (False, False, 1)
    assert (whole["staging"], whole["blocking"], whole["step"]) == (False, True, 2)
    assert len({event["file"] for event in followed.told}) == 1


BRIDGES = [
    deepspeed,
    megatron,
    megatron_checkpoint,
    lightning,
    lightning_fabric,
    lightning_launcher,
    transformers,
    accelerate,
    torchtitan,
]


@pytest.mark.parametrize("bridge", BRIDGES)
def test_framework_of_another_shape_is_refused(followed: Followed, bridge: Any) -> None:
    """The bootstrap says so once; a bridge that does half of its work would be worse."""
    with pytest.raises(AttributeError):
        bridge.install(ModuleType("empty"), followed.patches, followed.channel)

    assert isinstance(followed.tape, Tape)
