"""Two ranks, DDP on gloo, that are killed three times and resume from checkpoints. Argument: a folder to work in.

Each rank writes what really happened into FOLDER/truth.<rank>.jsonl, one line a fact, synced before it goes on.
"""

import time

STARTED_NS = time.time_ns()

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import NamedTuple  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

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

    def note(self, event: str, unix_ns: int, **more: int) -> None:
        """Append one fact."""
        line = {"event": event, "attempt": self._attempt, "unix_ns": unix_ns, **more}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def main() -> None:
    """Train through the plan's part of this attempt."""
    folder, attempt = Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    plan = PLAN[attempt]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    truth = Truth(folder / f"truth.{dist.get_rank()}.jsonl", attempt)
    truth.note("start", STARTED_NS)
    model = DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if plan.resume is not None:
        model.module.load_state_dict(torch.load(folder / f"step-{plan.resume}.pt"))
    # Warm up, so that the first step is one like the others.
    model(torch.randn(8, 256, generator=torch.Generator().manual_seed(1)))
    dist.barrier()
    for step in range(plan.resume or 0, LAST_STEP + 1):
        began_ns = time.time_ns()
        loss = model(torch.randn(8, 256)).square().mean()
        time.sleep(STEP_S)
        loss.backward()
        if step == plan.killed_in:
            dist.barrier()
            truth.note("killed", time.time_ns(), step=step)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        truth.note("step", time.time_ns(), step=step, began_ns=began_ns)
        if (step + 1) % SAVE_EVERY == 0:
            save_ns = time.time_ns()
            if dist.get_rank() == 0:
                torch.save(model.module.state_dict(), folder / f"step-{step + 1}.pt")
            truth.note("saved", time.time_ns(), step=step + 1, began_ns=save_ns)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
