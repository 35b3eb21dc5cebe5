"""Steps that Ctrl-C interrupts at every place of trainspan's in turn, each followed by some that nothing interrupts.

Prints what was recorded of the latter; run with trainspan and without a relay.
"""

import io
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

import trainspan
from trainspan import startup

OURS = str(Path(trainspan.__file__).parent)
UNINTERRUPTED = 3


def interrupt_at(place: int) -> list[str]:
    """Raise KeyboardInterrupt where Python would look for a signal for the `place`th time in our code; gives where."""
    where: list[str] = []
    passed = 0

    def look(frame: FrameType, event: str, called: Any) -> None:
        nonlocal passed
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(OURS):
            return
        passed += 1
        if passed == place:
            sys.setprofile(None)
            behind = f" behind {called.__name__}" if event == "c_return" else ""
            where.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}{behind}")
            raise KeyboardInterrupt

    sys.setprofile(look)
    return where


def main() -> None:
    """Interrupt, until there is no place left."""
    torch.set_num_threads(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)

    def train(steps: int) -> None:
        while steps:
            for (batch,) in loader:
                model(batch).sum().backward()
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                steps -= 1
                if not steps:
                    return

    train(4)
    recorder, _ = startup.recorder() or (None, None)
    assert recorder is not None
    stuck: list[str] = []
    place = 0
    while True:
        place += 1
        where = interrupt_at(place)
        try:
            train(2)
            with torch.no_grad():
                model.eval()(torch.ones(4))
            torch.save(model.state_dict(), io.BytesIO())
        except KeyboardInterrupt:
            torch.set_grad_enabled(True)  # torch's own `no_grad` may have been left by it
        finally:
            sys.setprofile(None)
            model.train()
        if not where:
            break
        train(1)
        before = recorder.marker.steps()
        train(UNINTERRUPTED)
        if recorder.marker.steps() - before != UNINTERRUPTED or recorder.marker.now():
            stuck += where
            recorder.marker.abort(0)
    print(json.dumps({"places": place - 1, "stuck": stuck}))


if __name__ == "__main__":
    main()
