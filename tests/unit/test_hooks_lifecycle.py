"""What comes before the first step is told as spans, and what is trained as facts; nothing of it changes."""

import inspect
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tests.unit import process_groups
from trainspan.identity import World
from trainspan.record.hooks import lifecycle as hook
from trainspan.record.hooks import training
from trainspan.record.patches import Patches
from trainspan.record.spans import SpanTeller


class Watched(NamedTuple):
    """The beginning, what was told of it, whether a forward has been seen, and what was joined."""

    lifecycle: hook.Lifecycle
    told: list[dict[str, Any]]
    forwards: list[int]
    worlds: list[World]

    def spans(self) -> dict[str, dict[str, Any]]:
        """What was told as spans, by name; each name once."""
        self.lifecycle.flush()
        names = [fields["name"] for fields in self.told]
        assert len(names) == len(set(names))
        return {fields["name"]: fields for fields in self.told}


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Torch with the hook in it."""
    told: list[dict[str, Any]] = []
    forwards: list[int] = []
    worlds: list[World] = []
    patches = Patches()
    spans = SpanTeller(lambda _event, /, **fields: told.append(fields), lambda: True)
    lifecycle = hook.Lifecycle(spans, lambda: bool(forwards))
    hook.install(patches, lifecycle)
    hook.install_process_group(patches, lifecycle, worlds.append)
    yield Watched(lifecycle, told, forwards, worlds)
    patches.undo()


@pytest.fixture(autouse=True)
def no_process_group() -> Iterator[None]:
    """After the test, whatever it joined is left."""
    yield
    process_groups.leave()


def make_model(width: int = 300) -> nn.Sequential:
    """A model that takes a millisecond to make."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def test_making_the_model_is_one_span(watched: Watched) -> None:
    """A script makes hundreds of modules; a user made one model."""
    make_model().double()

    [(name, span)] = watched.spans().items()

    assert name == "training.init.model"
    assert span["state"] == "model_init"
    assert span["end_ns"] - span["start_ns"] > 100_000


def test_small_modules_are_not_told(watched: Watched) -> None:
    """A loss or a metric is no model."""
    watched.lifecycle.model.note(0, hook.LEAST_MODEL_NS - 1)
    small = watched.spans()
    watched.lifecycle.model.note(0, hook.LEAST_MODEL_NS)

    assert (small, set(watched.spans())) == ({}, {"training.init.model"})


def test_optimizer_is_told_and_all_that_came_before_it(watched: Watched) -> None:
    """What is told before the first step is charged as what it was."""
    model = make_model()
    torch.optim.Adam(model.parameters())

    assert {fields["name"] for fields in watched.told} >= {"training.init.model"}


def test_process_group_and_wrapping_are_told(watched: Watched, tmp_path: Path) -> None:
    """A job that waits ten minutes for its last node spends them in the first of the two."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    model = DistributedDataParallel(make_model())

    spans = watched.spans()

    assert spans["training.init.process_group"]["attributes"] == {"training.process_group.backend": "gloo"}
    assert spans["training.init.wrap"]["start_ns"] >= spans["training.init.model"]["end_ns"]
    assert list(watched.lifecycle.replicas) == [model]
    assert watched.lifecycle.strategies == {"ddp"}


def told_place(way: str, port: int, path: Path) -> tuple[dict[str, Any], str | None]:
    """What `init_process_group` is given, and where that says that the ranks meet."""
    if way == "tcp":
        return {"init_method": f"tcp://127.0.0.1:{port}?use_libuv=0"}, f"127.0.0.1:{port}"
    if way == "tcp store":
        return {"store": dist.TCPStore("127.0.0.1", port, 1, is_master=True)}, f"127.0.0.1:{port}"
    if way == "file":
        return {"init_method": f"file://{path}/store"}, f"{path}/store"
    if way == "file store":
        return {"store": dist.PrefixStore("mine", dist.FileStore(f"{path}/store", 1))}, f"{path}/store"
    if way == "hash store":
        return {"store": dist.HashStore()}, None
    return {"init_method": "env://"} if way == "env" else {}, f"localhost:{port}"


@pytest.mark.parametrize("way", ["tcp", "tcp store", "file", "file store", "hash store", "env", "nothing"])
def test_place_where_ranks_meet_is_told(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It is what the ranks of a job have in common, however they are told it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(port))
    arguments, place = told_place(way, port, tmp_path)

    dist.init_process_group("gloo", rank=0, world_size=1, **arguments)

    assert watched.worlds == [World(0, 1, place)]


def test_group_that_is_joined_late_is_told(watched: Watched, tmp_path: Path) -> None:
    """A process that has trained by itself becomes a rank."""
    watched.forwards.append(1)

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

    assert len(watched.worlds) == 1
    assert watched.spans() == {}


def test_first_loader_is_told_with_its_workers(watched: Watched) -> None:
    """Starting workers by spawn takes seconds, once."""
    loader = DataLoader(TensorDataset(torch.ones(8)), batch_size=4, num_workers=1)

    batches = list(loader)

    assert len(batches) == 2
    assert watched.spans()["training.init.data_loader"]["attributes"] == {"training.data.workers": 1}
    assert watched.lifecycle.loader() is loader


@pytest.mark.parametrize("seen", ["forward", "end"])
def test_nothing_is_told_once_training_has_begun(watched: Watched, seen: str) -> None:
    """A module made in a forward is the compiler's or the script's; it is no init."""
    if seen == "forward":
        watched.forwards.append(1)
    else:
        watched.lifecycle.end()

    make_model()

    assert watched.spans() == {}


def test_failure_reaches_the_user_and_wrapping_is_over(watched: Watched) -> None:
    """A model without a process group cannot be wrapped; the next module is a model's again."""
    with pytest.raises(ValueError, match="process group"):
        DistributedDataParallel(make_model())

    assert watched.lifecycle.wrapping == 0


@pytest.mark.usefixtures("watched")
def test_signatures_are_those_of_torch() -> None:
    """Frameworks look at them to know what they may pass."""
    patched = [
        inspect.signature(made) for made in (DistributedDataParallel, torch.optim.Optimizer, DataLoader.__iter__)
    ]

    assert "device_ids" in patched[0].parameters
    assert list(patched[1].parameters) == ["params", "defaults"]
    assert list(patched[2].parameters) == ["self"]


def facts_of(watched: Watched, optimizer: Any, *models: nn.Module, autocast: str | None = None) -> dict[str, Any]:
    """What is told at the end of the first step."""
    told: list[dict[str, Any]] = []
    step_ended = training.install(
        watched.lifecycle,
        lambda: optimizer,
        lambda: models,
        lambda: autocast,
        lambda: False,
        lambda _event, /, **fields: told.append(fields),
    )
    step_ended()
    step_ended()
    [fields] = told
    attributes: dict[str, Any] = fields["attributes"]
    return attributes


def test_facts_are_what_people_look_for(watched: Watched) -> None:
    """Whose run is this, and what is in it: without a look into the script."""
    model = make_model(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, betas=(0.8, 0.95))
    next(iter(DataLoader(TensorDataset(torch.ones(8)), batch_size=4)))

    facts = facts_of(watched, optimizer, model, nn.Linear(2, 2), autocast="bfloat16")

    assert facts == {
        "training.model.class": "Sequential",
        "training.model.parameters": 2 * 110 + 6,
        "training.precision": "float32",
        "training.precision.autocast": "bfloat16",
        "training.optimizer.class": "AdamW",
        "training.optimizer.lr": 0.003,
        "training.optimizer.weight_decay": 0.01,
        "training.optimizer.eps": 1e-8,
        "training.optimizer.beta1": 0.8,
        "training.optimizer.beta2": 0.95,
        "training.strategy": "none",
        "training.compiled": False,
    }


def test_facts_read_no_tensor(watched: Watched) -> None:
    """The learning rate of a capturable optimizer is on the device: to read it would wait for that."""
    model = make_model(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.5))

    facts = facts_of(watched, optimizer, model)

    assert "training.optimizer.lr" not in facts


def test_batch_size_is_that_of_the_first_loader(watched: Watched) -> None:
    """The one for validation comes later, and is larger."""
    loaders = [DataLoader(TensorDataset(torch.ones(8)), batch_size=size) for size in (4, 8)]
    batches = [next(iter(loader)) for loader in loaders]

    facts = facts_of(watched, None)

    assert len(batches) == 2
    assert facts["training.batch.size"] == 4


def test_class_is_the_users_own_below_its_wrappers(watched: Watched, tmp_path: Path) -> None:
    """Every job of a cluster trains a DistributedDataParallel."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    model = DistributedDataParallel(torch.compile(make_model(10), backend="eager"))

    facts = facts_of(watched, None, model)

    assert facts["training.model.class"] == "Sequential"
    assert facts["training.strategy"] == "ddp"
    assert facts["training.model.parameters"] == 220


class Wrapper(DistributedDataParallel):
    """A package's own, as torchft's."""


def test_a_wrapper_of_another_packages_making_is_one(watched: Watched, tmp_path: Path) -> None:
    """What torch wraps with may be derived from; the model in it is the user's all the same."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    model = Wrapper(make_model(10))

    facts = facts_of(watched, None, model)

    assert facts["training.model.class"] == "Sequential"


class FabricModule(nn.Module):
    """As what `Fabric.setup` makes of a model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self._forward_module = model
        self._original_module = model


FabricModule.__module__ = "lightning.fabric.wrappers"


def test_what_fabric_makes_of_a_model_is_a_wrapper(watched: Watched) -> None:
    """Every model that is trained with it is a `_FabricModule`."""
    facts = facts_of(watched, None, FabricModule(make_model(10)))

    assert (facts["training.model.class"], facts["training.model.parameters"]) == ("Sequential", 220)
