"""Two ranks, DDP on gloo, that are killed three times and resume from checkpoints. Argument: a folder to work in.

Each rank writes what really happened into FOLDER/truth.<rank>.jsonl, one line a fact, synced before it goes on. Nobody
can read the clock at the very moment that is recorded, and on a busy machine a process may lie still between two lines:
so every time is two, read before and after, and what is true lies between them.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAVE_EVERY = 5
STEP_S = 0.15
LAST_STEP = 34


class Attempt(NamedTuple):
    """`resume`: the step it takes the run up at; None: nothing to load. `killed_in`: the step it is killed in."""

    resume: int | None
    killed_in: int | None


# The third goes back behind where the second began.
PLAN = (Attempt(None, 13), Attempt(10, 24), Attempt(5, 29), Attempt(25, None))


class Truth:
    """What really happened, on disk before it matters."""

    def __init__(self, path: Path, attempt: int):
        self._file = path.open("a", encoding="utf-8")
        self._attempt = attempt

    def note(self, event: str, before_ns: int, after_ns: int, step: int = 0) -> None:
        """Append one fact: it came true between the two times."""
        line = {"event": event, "attempt": self._attempt, "between_ns": [before_ns, after_ns], "step": step}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def started_ns() -> int:
    """When the kernel made this process, in Unix ns; it counts in hundredths of a second since it was booted."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot_ns


def witness_end(path: Path) -> None:
    """Have a shell write into `path` when this process is gone: then the kernel closes its end of a pipe."""
    read, _ = os.pipe()
    command = 'cat >/dev/null; date +%s%N >"$0.new"; mv "$0.new" "$0"'
    # A session of its own, because the launcher kills those of its workers.
    subprocess.Popen(["sh", "-c", command, str(path)], stdin=read, start_new_session=True)
    os.close(read)  # nobody inherits the other end, and only the kernel closes it


def main() -> None:
    """Train through the plan's part of this attempt."""
    folder, attempt = Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    plan, rank = PLAN[attempt], int(os.environ["RANK"])
    witness_end(folder / f"gone.{rank}.{attempt}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    truth = Truth(folder / f"truth.{rank}.jsonl", attempt)
    truth.note("start", started_ns(), started_ns())
    model = DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if plan.resume is not None:
        model.module.load_state_dict(torch.load(folder / f"step-{plan.resume}.pt"))
    # Warm up, so that the first step is one like the others. It is where the first step begins.
    before_ns = time.time_ns()
    model(torch.randn(8, 256, generator=torch.Generator().manual_seed(1)))
    truth.note("first", before_ns, time.time_ns())
    dist.barrier()
    for step in range(plan.resume or 0, LAST_STEP + 1):
        loss = model(torch.randn(8, 256)).square().mean()
        time.sleep(STEP_S)
        loss.backward()
        if step == plan.killed_in:
            dist.barrier()
            now_ns = time.time_ns()
            truth.note("killed", now_ns, now_ns, step)
            os.kill(os.getpid(), signal.SIGKILL)
        before_ns = time.time_ns()
        optimizer.step()
        truth.note("step", before_ns, time.time_ns(), step)
        optimizer.zero_grad()
        if (step + 1) % SAVE_EVERY == 0 and rank == 0:
            before_ns = time.time_ns()
            torch.save(model.module.state_dict(), folder / f"step-{step + 1}.pt")
            truth.note("saved", before_ns, time.time_ns(), step + 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
