"""What a batch holds, read from its shapes."""

from collections import UserDict, defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainspan.record.batches import OPERAND_MAX, BatchMeter
from trainspan.recording.layout import SAMPLES_MAX, TOKENS_SHIFT

IDS = torch.zeros(4, 128, dtype=torch.int64)
IMAGES = torch.zeros(6, 3, 8, 8)
LABELS = torch.zeros(6, dtype=torch.int64)


@dataclass
class Tokens:
    """A batch as research code has it."""

    source: str
    input_ids: Tensor

    @property
    def mask(self) -> Tensor:
        """Made when it is asked for."""
        raise AssertionError


class Graphs:
    """A batch of graphs, as PyTorch Geometric has it: nodes of all of them are in one tensor."""

    def __init__(self, batch_size: object):
        self.x = torch.zeros(50, 8)
        self.batch_size = batch_size


@dataclass(frozen=True)
class Images:
    """A batch of several views."""

    views: dict[str, Tensor]


def iterator_asking_for(samples: int | None) -> Any:
    """What an iterator of a DataLoader shows of what it asks for."""
    return SimpleNamespace(_index_sampler=SimpleNamespace(batch_size=samples))


def held_by(batch: Any, asked_for: int | None = None) -> tuple[int, int]:
    """(samples, tokens) of a batch."""
    operand = measured(BatchMeter(), batch, asked_for)
    return operand & SAMPLES_MAX, operand >> TOKENS_SHIFT


def measured(meter: BatchMeter, batch: Any, asked_for: int | None = None) -> int:
    """What the mark says of a batch, as the hook asks for it."""
    try:
        operand = meter.measures[type(batch)](batch)
    except (KeyError, IndexError, AttributeError):
        operand = meter.learn(batch, iterator_asking_for(asked_for))
    return operand if operand <= OPERAND_MAX else 0


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (IMAGES, 6, 0),
        (torch.tensor(1.0), 1, 0),
        ([IMAGES, LABELS], 6, 0),
        ({"image": IMAGES, "label": LABELS}, 6, 0),
        ({"input_ids": IDS, "labels": IDS}, 4, 512),
        ({"labels": LABELS[:4], "attention_mask": IDS, "input_ids": IDS}, 4, 512),
        ({"anchor_input_ids": IDS, "anchor_mask": IDS, "positive_input_ids": IDS[:, :64]}, 4, 512 + 256),
        ({"input_ids": IDS, "decoder_input_ids": IDS}, 4, 512),
        ({"far_input_ids": IMAGES, "label": LABELS}, 6, 0),
        (UserDict({"input_ids": IDS}), 4, 512),
        (Tokens("a source", IDS), 4, 512),
        (Images({"first": IMAGES, "second": IMAGES}), 6, 0),
        (({"input": IDS}, IDS), 4, 512),
        ({"input": IMAGES}, 6, 0),
        ([[IMAGES, IMAGES], LABELS], 6, 0),
        ([{"image": IMAGES[0]}, {"image": IMAGES[1]}], 2, 0),
        ("text", 0, 0),
        (["a", "b"], 2, 0),
        (Graphs(5), 5, 0),
        (Graphs(torch.Size([5, 3])), 5, 0),
        (Graphs(torch.Size([])), 0, 0),
        (Graphs(None), 0, 0),
        (Graphs(SAMPLES_MAX + 1), 0, 0),
        ([], 0, 0),
        ({}, 0, 0),
        (None, 0, 0),
    ],
)
def test_shapes_tell_samples_and_tokens(batch: Any, samples: int, tokens: int) -> None:
    """Every common form of a batch; of what says nothing, nothing is told."""
    assert held_by(batch) == (samples, tokens)


@pytest.mark.parametrize(
    ("batch", "asked_for"),
    [
        ((tuple(IMAGES), tuple({} for _ in range(6))), 6),
        ([(image, 0) for image in IMAGES], 6),
        ([[IMAGES, IMAGES], LABELS], 6),
    ],
    ids=["zipped", "listed", "nested"],
)
def test_loader_tells_which_size_is_that_of_the_batch(batch: Any, asked_for: int) -> None:
    """Three colors are no three samples."""
    assert held_by(batch, asked_for) == (6, 0)


def test_smaller_last_batch_is_measured_anew() -> None:
    """Where to look is learned once; what is found there is not."""
    meter = BatchMeter()

    found = [measured(meter, [IMAGES[:size], LABELS[:size]], 6) for size in (6, 6, 2)]

    assert found == [6, 6, 2]


def test_batch_of_the_same_type_and_another_form_is_learned_anew() -> None:
    """Training and validation may both have dictionaries, with other keys."""
    meter = BatchMeter()
    batches: list[dict[str, Tensor]] = [{"image": IMAGES}, {"input_ids": IDS}, {"image": IMAGES}]

    found = [measured(meter, batch) for batch in batches]

    assert found == [6, 512 << TOKENS_SHIFT | 4, 6]


def test_dictionary_of_its_own_kind_is_not_asked() -> None:
    """One makes what is asked for and not there; another loads it, and counts who has asked."""

    class Lazy(dict[str, Tensor]):
        """Must be asked by nobody but the script."""

        def __getitem__(self, key: str) -> Tensor:
            raise AssertionError(key)

    meter = BatchMeter()
    made = defaultdict(list, {"text": LABELS})
    measured(meter, defaultdict(list, {"image": IMAGES}))

    found = [measured(meter, batch) for batch in (made, Lazy(image=IMAGES), Lazy(image=IMAGES))]

    assert found == [6, 6, 6]
    assert list(made) == ["text"]


def test_batch_that_fails_is_not_measured() -> None:
    """A batch is the user's own class; whatever it does when it is asked must not end the training."""

    class Hostile(dict[str, Any]):
        """Raises when it is looked into."""

        def items(self) -> Any:
            raise RuntimeError("no")

    assert held_by(Hostile()) == (0, 0)


def test_size_beyond_what_a_mark_holds_is_not_told() -> None:
    """Cut off, it would be another number."""
    samples = torch.zeros(1).expand(SAMPLES_MAX + 1)
    ids = torch.zeros(1, dtype=torch.int64).expand(1 << 16, 1 << 16)

    assert held_by(samples) == (0, 0)
    assert held_by({"input_ids": ids}) == (0, 0)


def test_batch_that_makes_what_it_is_asked_for_is_not_asked() -> None:
    """One that loads lazily would load, or draw random numbers, because somebody looks on."""
    asked: list[str] = []

    class Lazy:
        """A batch that has everything."""

        def __getattr__(self, name: str) -> int:
            asked.append(name)
            return 8

    held = held_by(Lazy())

    assert held == (0, 0)
    assert "batch_size" not in asked
