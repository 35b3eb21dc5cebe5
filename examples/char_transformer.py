"""A character-level transformer, trained on the sources of Python's own standard library.

One process:    python char_transformer.py
Two processes:  torchrun --nproc-per-node 2 char_transformer.py

Each process takes one GPU where there are enough, otherwise one core. The loss begins near ln(128) = 4.85.
"""

import argparse
import gc
import os
import sysconfig
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY = 128  # ASCII; everything else becomes "?"
CONTEXT = 128
WIDTH = 128
HEADS = 4
LAYERS = 4
BATCH = 16
MICRO_BATCHES = 2
LEARNING_RATE = 2e-3
WARMUP_STEPS = 20
CLIP_NORM = 1.0

Pair = tuple[Tensor, Tensor]  # characters, and the character after each of them
Batches = Iterable[Pair]


def read_text(limit_bytes: int = 4_000_000) -> Tensor:
    """The first megabytes of the standard library, as character codes."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text("utf-8", errors="replace").encode("ascii", errors="replace")
    return torch.frombuffer(text, dtype=torch.uint8)[:limit_bytes]


class Windows(Dataset[Pair]):
    """Pieces of the text; the target of each character is the one after it."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Pair:
        piece = self.text[index * CONTEXT : (index + 1) * CONTEXT + 1].long()
        return piece[:-1], piece[1:]


class Block(nn.Module):
    """Attention over what came before, then a small network on each character."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.query_key_value(self.norm_1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.think(self.norm_2(x))


class CharTransformer(nn.Module):
    """Predicts the next character at every place; returns the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.character = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, characters: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(characters.shape[1], device=characters.device)
        x = self.blocks(self.character(characters) + self.position(places))
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def endless(loader: Batches, sampler: DistributedSampler[Pair]) -> Iterator[Pair]:
    """Batches of one epoch after the other, each epoch in another order."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def accumulate(model: nn.Module, batches: Iterator[Pair], device: torch.device) -> float:
    """The loss of one step; its gradients are left in the parameters."""
    total = 0.0
    for micro_batch in range(MICRO_BATCHES):
        x, y = next(batches)
        last = micro_batch == MICRO_BATCHES - 1
        # Processes average their gradients once per step, with the last micro-batch.
        with model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext():
            loss = model(x.to(device), y.to(device)) / MICRO_BATCHES
            loss.backward()
        total += loss.item()
    return total


@torch.no_grad()
def validate(model: nn.Module, batches: Batches, device: torch.device) -> float:
    """The mean loss over text the model is not trained on."""
    model.eval()
    losses = [model(x.to(device), y.to(device)) for x, y in batches]
    model.train()
    return torch.stack(losses).mean().item()


def train(steps: int, validate_every: int, device: torch.device, rank: int, ranks: int) -> None:
    """Train a fresh model for so many optimizer steps; the first process prints how it goes."""
    torch.manual_seed(1337)
    text = read_text()
    split = int(0.95 * len(text))
    windows = Windows(text[:split])
    sampler = DistributedSampler(windows, num_replicas=ranks, rank=rank, drop_last=True)
    loader = DataLoader(windows, BATCH, sampler=sampler, num_workers=2, persistent_workers=True)
    unseen = DataLoader(Windows(text[split:]), BATCH, sampler=range(4 * BATCH))
    batches = endless(loader, sampler)

    model: nn.Module = CharTransformer().to(device)
    parameters = sum(p.numel() for p in model.parameters())
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=WARMUP_STEPS)

    say = partial(print, flush=True) if rank == 0 else lambda _: None
    say(f"{len(text):,} characters, {parameters:,} parameters, {ranks} process(es) on {device.type}")
    began = time.perf_counter()
    for step in range(1, steps + 1):
        loss = accumulate(model, batches, device)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        warmup.step()

        if step == 1 or step % 5 == 0:
            say(f"step {step:4d}/{steps}  loss {loss:.3f}  {step / (time.perf_counter() - began):.2f} steps/s")
        if step % validate_every == 0:
            say(f"step {step:4d}/{steps}  validation loss {validate(model, unseen, device):.3f}")


def main() -> None:
    """Join the other processes, if there are any, and train."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=120, help="optimizer steps (default: 120)")
    arguments.add_argument("--validate-every", type=int, default=40, help="steps between validations (default: 40)")
    options = arguments.parse_args()

    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    train(options.steps, options.validate_every, device, rank, ranks)

    if ranks > 1:
        # A model left in a cycle keeps threads of gloo alive, and those may abort the process at its very end.
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
