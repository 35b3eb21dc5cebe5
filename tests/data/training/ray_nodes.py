"""Ray Train on two nodes, of which one is lost in the midst of it and comes back: two of Ray's nodes, on this host."""

import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

NODES = 2
STEPS = 4
LOST_AT = 2
TRY_S = 1
"""How long Ray waits for resources before it tries again."""

TRIES_IN_VAIN_S = 15
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
"""Addresses of this host that no other can reach; Ray makes 127.0.0.1 one that others can."""


def work(config: dict[str, Any]) -> None:
    """What each worker does."""
    context = ray.train.get_context()
    rank, notes = context.get_world_rank(), Path(config["notes"])
    on_other = ray.util.get_node_ip_address() == OTHER
    torch.manual_seed(1)
    model: nn.Module = prepare_model(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        if number == LOST_AT and not (notes / "back").exists():
            (notes / f"at {rank}").touch()
            while on_other:
                time.sleep(1)  # until it is lost
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    place = {"rank": rank, "node": context.get_node_rank(), "on_other": on_other, "pid": os.getpid()}
    (notes / f"{rank}.json").write_text(json.dumps(place))


def fit(place: str) -> None:
    """Train, and begin anew what a lost node has ended."""
    TorchTrainer(
        work,
        train_loop_config={"notes": place},
        scaling_config=ScalingConfig(num_workers=NODES, placement_strategy="SPREAD"),
        run_config=RunConfig(name="spread", storage_path=place, failure_config=FailureConfig(max_failures=1)),
    ).fit()


def train_and_lose(cluster: Cluster, notes: Path) -> None:
    """Lose the other node once every worker has begun, and give it back after Ray has tried without it."""
    training = threading.Thread(target=fit, args=(str(notes),))
    training.start()
    while training.is_alive() and len(list(notes.glob("at *"))) < NODES:
        time.sleep(0.1)
    [other] = cluster.worker_nodes
    cluster.remove_node(other, allow_graceful=False)
    while sum(node["Alive"] for node in ray.nodes()) == NODES:
        time.sleep(0.1)
    time.sleep(TRIES_IN_VAIN_S)
    (notes / "back").touch()
    cluster.add_node(num_cpus=1, node_ip_address=OTHER)
    training.join()


if __name__ == "__main__":
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(TRY_S)
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"  # another process that imports all there is
    with (
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as sessions,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place,
    ):
        # Where a cluster keeps its sessions, and notes its address for all drivers of the host to find.
        os.environ["RAY_TMPDIR"] = sessions
        head = {"num_cpus": 1, "node_ip_address": HEAD, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(num_cpus=1, node_ip_address=OTHER)
        ray.init(cluster.address, _node_ip_address=HEAD, log_to_driver=False)
        train_and_lose(cluster, Path(place))
        for rank in range(NODES):
            print(Path(place, f"{rank}.json").read_text(), flush=True)
        ray.shutdown()
        cluster.shutdown()
