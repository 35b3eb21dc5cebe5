"""Ray Train with two workers (train), of which one is killed and begun anew (lose); two trials of Ray Tune (tune).

Or one trial of a class, which fails once (class). Of argv those, one after the other. Most of the time goes into what
the processes import that Ray starts: few are started.
"""

import functools
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray import tune
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RANKS = 2
STEPS = 4
BATCH = 4
KILLED_AT = 2


def loader() -> DataLoader[Any]:
    """The same batches each time."""
    torch.manual_seed(0)
    samples = RANKS * STEPS * BATCH
    return DataLoader(TensorDataset(torch.randn(samples, 8), torch.randn(samples, 1)), batch_size=BATCH)


def train(model: nn.Module, batches: Any, killed_at: int | None = None) -> float:
    """The last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for number, (features, wanted) in enumerate(batches):
        if number == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = nn.functional.mse_loss(model(features), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss)


def told(model: nn.Module, **facts: Any) -> dict[str, Any]:
    """What is to be the same with and without us."""
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return {"weights": hashlib.sha256(weights).hexdigest(), "random": torch.rand(1).item(), **facts}


def work(config: dict[str, Any]) -> None:
    """What each worker does."""
    rank = ray.train.get_context().get_world_rank()
    batches = prepare_data_loader(loader(), add_dist_sampler=True)
    torch.manual_seed(1)
    model: nn.Module = prepare_model(nn.Linear(8, 1))
    first = not Path(config["notes"], f"{rank}").exists()
    Path(config["notes"], f"{rank}").touch()
    loss = train(model, batches, KILLED_AT if config["loses"] and first and rank == 1 else None)
    ray.train.report({"loss": loss})
    line = told(model, scenario="train", name="train", rank=rank, pid=os.getpid())
    Path(config["notes"], f"{rank}.json").write_text(json.dumps(line))


def run_workers(*, loses: bool) -> None:
    """Two workers, and two again where one is lost."""
    with tempfile.TemporaryDirectory() as place:
        trainer = TorchTrainer(
            work,
            train_loop_config={"notes": place, "loses": loses},
            scaling_config=ScalingConfig(num_workers=RANKS),
            run_config=RunConfig(name="bert", storage_path=place, failure_config=FailureConfig(max_failures=1)),
        )
        trainer.fit()
        for rank in range(RANKS):
            print(Path(place, f"{rank}.json").read_text(), flush=True)


def try_out(config: dict[str, Any]) -> None:
    """What each trial does."""
    torch.manual_seed(config["seed"])
    model = nn.Linear(8, 1)
    loss = train(model, loader())
    tune.report({"loss": loss, **told(model, name=f"trial {config['seed']}", pid=os.getpid())})


def run_trials() -> None:
    """Two trials, one after the other in one process."""
    with tempfile.TemporaryDirectory() as place:
        space = {"seed": tune.grid_search([1, 2])}
        results = tune.Tuner(
            try_out,
            param_space=space,
            tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
            run_config=tune.RunConfig(name="sweep", storage_path=place),
        ).fit()
        for result in results:
            metrics = result.metrics or {}
            shown = {name: metrics[name] for name in ("name", "pid", "weights", "random", "loss")}
            print(json.dumps({"scenario": "tune", **shown}), flush=True)


class Tuned(tune.Trainable):
    """What a trial is that is a class: each step some steps of an optimizer, with a checkpoint after each."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin."""
        self.failed = Path(config["notes"], "failed")
        self.model = nn.Linear(8, 1)

    def step(self) -> dict[str, Any]:
        """Train; the second step fails, once."""
        if self.iteration == 1 and not self.failed.exists():
            self.failed.touch()
            raise ValueError("fails once")
        return {"loss": train(self.model, loader()), "done": self.iteration == 1}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the weights."""
        torch.save(self.model.state_dict(), Path(checkpoint_dir, "model.pt"))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Read them."""
        self.model.load_state_dict(torch.load(Path(checkpoint, "model.pt")))


def run_class() -> None:
    """One trial, begun anew."""
    with tempfile.TemporaryDirectory() as place:
        run_config = tune.RunConfig(
            name="class",
            storage_path=place,
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        )
        tune.Tuner(Tuned, param_space={"notes": place}, run_config=run_config).fit()


SCENARIOS: dict[str, Callable[[], None]] = {
    "class": run_class,
    "train": functools.partial(run_workers, loses=False),
    "lose": functools.partial(run_workers, loses=True),
    "tune": run_trials,
}

if __name__ == "__main__":
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
    # Its sessions are elsewhere in a folder that all users of Ray on the host share; sockets allow for no long path.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as sessions:
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=sessions,
            log_to_driver=False,
        )
        for scenario in sys.argv[1:]:
            SCENARIOS[scenario]()
        ray.shutdown()
