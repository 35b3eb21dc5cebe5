"""Checkpoints of every kind. Argument: a folder. Prints what it did, and a hash of what training gave."""

import hashlib
import io
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class FromFiles(Dataset[Tensor]):
    """A file a sample, as many data sets are."""

    def __init__(self, folder: Path):
        self.files = [folder / f"sample-{number}.pt" for number in range(4)]
        for file in self.files:
            torch.save(torch.ones(16), file)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        sample: Tensor = torch.load(self.files[index])
        return sample


class Unwilling:
    """What cannot be pickled."""

    def __reduce__(self) -> str:
        raise ValueError("not to be saved")


def main() -> None:
    """Save and load before, within and after steps, from this thread and another."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    torch.save(model.state_dict(), folder / "start.pt")
    model.load_state_dict(torch.load(folder / "start.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    samples = FromFiles(folder)
    torch.save(nn.Linear(256, 256).state_dict(), folder / "large.pt")
    for step, batch in enumerate(DataLoader(samples, num_workers=2)):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        began_ns = time.monotonic_ns()
        if step == 1:
            torch.save(nn.Linear(256, 256).state_dict(), f=str(folder / "second.pt"))
            torch.save(torch.get_rng_state()[:16], folder / "rng.pt")
            buffer = io.BytesIO()
            torch.save(model.state_dict(), buffer)
        if step == 2:
            other = threading.Thread(target=torch.save, args=(torch.ones(256, 256), folder / "thread.pt"))
            other.start()
            other.join()
            try:
                torch.save(Unwilling(), folder / "refused.pt")
            except ValueError as error:
                print(json.dumps({"refused": str(error)}))
        print(json.dumps({"step": step, "checkpoint_ns": time.monotonic_ns() - began_ns}))
    for name, file in (("save", torch.save), ("load", torch.load)):
        print(json.dumps({"name": name, "is": file.__name__, "module": file.__module__}))
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(json.dumps({"weights": weights, "folder": os.fspath(folder)}), flush=True)


if __name__ == "__main__":
    main()
