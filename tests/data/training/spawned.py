"""Ranks that a script starts itself, in ways that the arguments name; nothing in the environment tells their rank.

`spawn` is torch's tutorial on DistributedDataParallel: `setup`, and a rank from its beginning to its end.
"""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tests.data.training.evidence import leave_group, report, run_each

RANKS = 2
STEPS = 6


def free_port() -> str:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def seed(number: int) -> None:
    """Make everything random the same as in another run; Python seeds its own generator anew in a fork."""
    random.seed(number)
    torch.manual_seed(number)


def setup(rank: int, port: str) -> None:
    """Join the process group, as the tutorial does."""
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = port
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)


def train(rank: int, scenario: str) -> None:
    """Train a replicated model, with batches from a DataLoader's worker."""
    seed(rank)
    samples = torch.randn(STEPS * 4, 8)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (inputs,) in DataLoader(TensorDataset(samples), batch_size=4, num_workers=1):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    report(scenario, model, rank=rank)


def demo(rank: int, port: str, scenario: str) -> None:
    """One rank, from its beginning to its end."""
    torch.set_num_threads(1)
    setup(rank, port)
    train(rank, scenario)
    leave_group()


def early(rank: int, port: str, scenario: str) -> None:
    """One rank that has an optimizer before it joins the group."""
    seed(rank)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    setup(rank, port)
    replica = DistributedDataParallel(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        replica(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    report(scenario, model, rank=rank)
    leave_group()


def alone(number: int, scenario: str) -> None:
    """A training that is no rank of anything."""
    seed(number)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + number))
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    report(scenario, model, rank=number)


def start(method: str, *calls: tuple[Any, ...]) -> None:
    """Start a process of multiprocessing for each call, and wait for all of them."""
    context = mp.get_context(method)
    children = [context.Process(target=function, args=arguments) for function, *arguments in calls]
    for child in children:
        child.start()
    for child in children:
        child.join()


def spawn() -> None:
    """Two trainings one after the other on the same port, as the tutorial has them."""
    port = free_port()
    for scenario in ("first", "second"):
        mp.spawn(demo, args=(port, scenario), nprocs=RANKS)


def fork() -> None:
    """A loop over processes."""
    port = free_port()
    start("fork", *((demo, rank, port, "fork") for rank in range(RANKS)))


def fork_early() -> None:
    """Ranks that have an optimizer before they have a group."""
    port = free_port()
    start("fork", *((early, rank, port, "early") for rank in range(RANKS)))


def parent() -> None:
    """The parent trains by itself, before its ranks and after them."""
    port = free_port()
    alone(0, "parent")
    start("fork", *((demo, rank, port, "children") for rank in range(RANKS)))
    alone(1, "parent again")


def sweep() -> None:
    """Independent trainings at the same time."""
    start("fork", *((alone, number, "sweep") for number in range(RANKS)))


def sweep_of_jobs() -> None:
    """Two jobs of two ranks each at the same time."""
    ports = {"one job": free_port(), "another": free_port()}
    start("fork", *((demo, rank, port, job) for job, port in ports.items() for rank in range(RANKS)))


def of_accelerate(*_: Any) -> None:
    """What the launchers of Accelerate start."""
    seed(3)
    accelerator = import_module("accelerate").Accelerator(cpu=True)
    model = nn.Linear(8, 1)
    loader: Any = DataLoader(TensorDataset(torch.randn(RANKS * STEPS * 4, 8)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for (inputs,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(inputs).square().mean())
        optimizer.step()
    report(os.environ["SCENARIO"], model, rank=accelerator.process_index)
    leave_group()


def notebook_launcher() -> None:
    """Accelerate's launcher for notebooks, twice, as a cell is run again."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    port = free_port()
    for os.environ["SCENARIO"] in ("cell", "cell again"):
        import_module("accelerate").notebook_launcher(of_accelerate, num_processes=RANKS, use_port=port)


def debug_launcher() -> None:
    """The one whose ranks meet in a file."""
    os.environ["SCENARIO"] = "debug_launcher"
    import_module("accelerate").debug_launcher(of_accelerate, num_processes=RANKS)


def lightning(strategy: str) -> None:
    """Lightning's own ways to start ranks, in a script and in a notebook."""
    os.environ["MASTER_PORT"] = free_port()
    modules = import_module("tests.data.training.spawned_lightning")
    trainer = import_module("lightning.pytorch").Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=strategy,
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(modules.Model(strategy), modules.batches())


def shell() -> None:
    """A shell starts each rank in the background; tomorrow's job has the same port."""
    line = f"{sys.executable} {__file__} ranked & "
    script = "".join(f"RANK={rank} {line}" for rank in range(RANKS)) + "wait"
    port = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for day in ("today", "tomorrow"):
        subprocess.run(["/bin/sh", "-c", script], env={**os.environ, **port, "SCENARIO": day}, check=True)


def ranked() -> None:
    """What that starts: its rank is in its environment."""
    dist.init_process_group("gloo")
    train(dist.get_rank(), os.environ["SCENARIO"])
    leave_group()


def arguments() -> None:
    """A shell tells each rank by an argument, and where they meet."""
    line = f"{sys.executable} {__file__} argued"
    port = free_port()
    script = "".join(f"RANK_ARGUMENT={rank} PORT={port} {line} & " for rank in range(RANKS)) + "wait"
    subprocess.run(["/bin/sh", "-c", script], check=True)


def argued() -> None:
    """What that one starts; that its arguments stand in variables of its own is nothing that anybody knows."""
    rank = int(os.environ["RANK_ARGUMENT"])
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{os.environ['PORT']}", world_size=RANKS, rank=rank)
    train(rank, os.environ.get("SCENARIO", "arguments"))
    leave_group()


def mpirun() -> None:
    """Ranks with what Open MPI 4 gives them, each below a shell of its own, in which it trains twice."""
    common = {"OMPI_COMM_WORLD_SIZE": str(RANKS), "OMPI_COMM_WORLD_LOCAL_SIZE": str(RANKS), "PORT": free_port()}
    common["OMPI_MCA_orte_precondition_transports"] = "475362a8c20911fd-d01aa38d4fdb9cc0"
    line = "; ".join(f"SCENARIO={scenario} {sys.executable} {__file__} below_mpirun" for scenario in ("once", "again"))
    ranks = []
    for rank in map(str, range(RANKS)):
        environ = {**os.environ, **common, "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank}
        ranks.append(subprocess.Popen(["/bin/sh", "-c", line], env=environ))
    assert [rank.wait() for rank in ranks] == [0] * RANKS


def below_mpirun() -> None:
    """One of them, which has an optimizer before anybody knows where they meet."""
    early(int(os.environ["OMPI_COMM_WORLD_RANK"]), os.environ["PORT"], os.environ["SCENARIO"])


def chained() -> None:
    """Two jobs of Slurm's, one after the other, with one `srun` each."""
    for job, scenario in (("81", "first job"), ("82", "next job")):
        step = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(RANKS), "SLURM_GTIDS": "0,1"}
        environ = {**os.environ, **step, "PORT": free_port(), "SCENARIO": scenario}
        line = f"{sys.executable} {__file__} argued"
        told = ("SLURM_PROCID", "SLURM_LOCALID", "RANK_ARGUMENT")
        tasks = (" ".join(f"{name}={rank}" for name in told) + f" {line} &" for rank in range(RANKS))
        subprocess.run(["/bin/sh", "-c", f"{' '.join(tasks)} wait"], env=environ, check=True)


SCENARIOS: Mapping[str, Callable[[], None]] = {
    "spawn": spawn,
    "fork": fork,
    "fork_early": fork_early,
    "parent": parent,
    "sweep": sweep,
    "sweep_of_jobs": sweep_of_jobs,
    "notebook_launcher": notebook_launcher,
    "debug_launcher": debug_launcher,
    "ddp_spawn": lambda: lightning("ddp_spawn"),
    "ddp_notebook": lambda: lightning("ddp_notebook"),
    "shell": shell,
    "ranked": ranked,
    "arguments": arguments,
    "argued": argued,
    "chained": chained,
    "mpirun": mpirun,
    "below_mpirun": below_mpirun,
}

if __name__ == "__main__":
    run_each(SCENARIOS, sys.argv[1:])
