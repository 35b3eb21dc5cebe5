"""What a process is to a training job, told from real command lines."""

import subprocess
import sys
from pathlib import Path

import pytest

from trainspan.role import RANK_PID, Role, role_of

PYTHON = "/usr/bin/python3"
PID = 4711
WORKER = {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}

SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"
TRACKER = "from multiprocessing.resource_tracker import main;main(5)"
FORKSERVER = "from multiprocessing.forkserver import main; main(3, 4, ['__main__'], **{'sys_path': ['/app']})"
COMPILE_WORKER = "/usr/lib/python3/dist-packages/torch/_inductor/compile_worker/__main__.py"
# What `python -X dev -W error -B -s train.py` hands on to its children (multiprocessing passes its own flags).
FLAGS = ("-s", "-B", "-Werror", "-X", "dev", "-X", "pycache_prefix=/cache", "-u")

AGENTS = [
    ["/opt/env/bin/torchrun", "--nproc-per-node", "2", "train.py"],
    ["-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"],
    ["-mtorch.distributed.run", "--nproc-per-node=2", "train.py"],
    ["-um", "torch.distributed.run", "train.py"],
    ["-m", "torch.distributed.launch", "train.py"],
    ["-u", "-X", "dev", "-W", "ignore", "-m", "torch.distributed.run", "train.py"],
    ["-u", "/opt/env/bin/torchrun", "train.py"],
    ["--check-hash-based-pycs", "always", "/opt/env/bin/torchrun", "train.py"],
    ["/opt/env/bin/accelerate", "launch", "train.py"],
    ["/opt/env/bin/accelerate-launch", "train.py"],
    ["-m", "accelerate.commands.launch", "train.py"],
    ["/opt/env/bin/deepspeed", "--num_gpus", "2", "train.py"],
    ["-u", "-m", "deepspeed.launcher.launch", "--world_info=e30=", "train.py"],
]
RANKS = [
    ["train.py"],
    ["-u", "train.py", "--epochs", "3"],
    ["-m", "my.trainer"],
    ["-c", "import torch; print(torch.__version__)"],
    ["-c", "import torch", "torchrun"],
    ["train.py", "--launcher", "torchrun"],
    ["train.py", "-m", "torch.distributed.run"],
    ["-X", "importtime", "train.py"],
    ["-Xdev", "train.py"],
    ["--check-hash-based-pycs", "always", "train.py"],
    ["-i"],
    [],
]
HELPERS = [
    ["-c", TRACKER],
    [*FLAGS, "-c", TRACKER],
    [COMPILE_WORKER, "--pickler=torch._inductor.compile_worker.subproc_pool.SubprocPickler", "--kind=fork"],
    [*FLAGS, COMPILE_WORKER, "--kind=fork", "--workers=2", "--parent=4711"],
    ["-m", "torch._inductor.compile_worker", "--workers=2"],
    ["/opt/env/bin/trainspan", "run", "--", "torchrun", "train.py"],
    ["-m", "trainspan", "report"],
    ["-m", "trainspan.relay", "/dev/shm/trainspan-x"],
]
SPAWNS = [
    ["-c", FORKSERVER],
    ["-c", SPAWN, "--multiprocessing-fork"],
    [*FLAGS, "-c", SPAWN, "--multiprocessing-fork"],
]


@pytest.mark.parametrize("arguments", AGENTS)
def test_launcher_is_an_agent(arguments: list[str]) -> None:
    """The launcher outlives its ranks, and names the run for them."""
    role = role_of([PYTHON, *arguments], {}, PID)

    assert role == Role.AGENT


@pytest.mark.parametrize("arguments", RANKS)
def test_script_may_train(arguments: list[str]) -> None:
    """Any script can turn out to train: what it does is known only once it does it."""
    role = role_of([PYTHON, *arguments], {}, PID)

    assert role == Role.RANK


@pytest.mark.parametrize("arguments", [["-u", "train.py"], ["-m", "my.trainer"], ["/opt/env/bin/accelerate", "launch"]])
def test_worker_of_a_launcher_is_a_rank(arguments: list[str]) -> None:
    """What torchrun started is no second launcher, whatever it is called."""
    role = role_of([PYTHON, *arguments], WORKER, PID)

    assert role == Role.RANK


@pytest.mark.parametrize("environ", [{}, WORKER, {RANK_PID: "1"}], ids=["alone", "in-a-worker", "under-a-rank"])
@pytest.mark.parametrize("arguments", HELPERS)
def test_helper_never_trains(arguments: list[str], environ: dict[str, str]) -> None:
    """These inherit a rank's environment, and there are dozens of them: each must cost nothing."""
    role = role_of([PYTHON, *arguments], environ, PID)

    assert role == Role.HELPER


@pytest.mark.parametrize("environ", [{}, WORKER, {RANK_PID: "1"}], ids=["alone", "in-a-worker", "under-a-rank"])
@pytest.mark.parametrize("arguments", SPAWNS)
def test_spawned_child_is_told_apart(arguments: list[str], environ: dict[str, str]) -> None:
    """A DataLoader worker and a rank of `mp.spawn` look the same here: neither is recorded before it trains."""
    role = role_of([PYTHON, *arguments], environ, PID)

    assert role == Role.SPAWNED


def test_child_of_a_recording_process_is_no_second_rank() -> None:
    """torch.compile asks `python -c` what the processor can: with RANK=0 in its environment, like its parent."""
    probe = [PYTHON, "-c", "\nimport sys\nfrom ctypes import cdll\ncdll.LoadLibrary('/cache/probe.so')\n"]

    role = role_of(probe, {**WORKER, RANK_PID: str(PID - 1)}, PID)

    assert role == Role.SPAWNED


def test_recording_process_that_replaces_itself_stays_a_rank() -> None:
    """`os.execv` keeps the process id: a script that restarts itself this way goes on training."""
    environ = {**WORKER, RANK_PID: str(PID)}

    role = role_of([PYTHON, "train.py"], environ, PID)

    assert role == Role.RANK


def test_telling_the_role_loads_nothing(repository: Path) -> None:
    """Every Python process of a training job runs this: what it imports, each of them pays for."""
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules);"
        "from trainspan.role import role_of; role_of(sys.orig_argv, {}, 1);"
        "print(*sorted(set(sys.modules) - before))"
    )
    # Without `site`, so that nothing which other packages load at start-up hides what we load.
    command = [sys.executable, "-I", "-S", "-c", program, str(repository / "src")]

    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["trainspan", "trainspan.role"]
