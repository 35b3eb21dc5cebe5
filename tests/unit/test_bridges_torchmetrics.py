"""What metrics return is told by name, and is what it would be without us."""

import copy
import importlib
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.unit.followed import Followed
from trainspan.record.bridges import torchmetrics as bridge
from trainspan.record.scalars import ScalarLog

torchmetrics = pytest.importorskip(
    "torchmetrics", reason="torchmetrics is not installed: would show what is heard of its metrics"
)
PREDICTED = torch.tensor([0, 1, 1, 2])
TRUE = torch.tensor([0, 1, 2, 2])


class Heard:
    """What was logged."""

    def __init__(self) -> None:
        followed = Followed()
        self.marker, self.patches = followed.marker, followed.patches
        self.values: dict[str, float] = {}
        self.scalars = ScalarLog(self.tell, self.marker.steps, {})
        self.channel = followed.channel._replace(scalars=self.scalars)

    def tell(self, event: str, **fields: Any) -> None:
        """Take an event."""
        if event == "scalars":
            self.values.update(fields["values"])
            assert fields["dropped"] == 0

    def told(self) -> dict[str, float]:
        """The values by name."""
        self.scalars.close()
        return {name: round(value, 4) for name, value in self.values.items()}


@pytest.fixture
def heard() -> Iterator[Heard]:
    """torchmetrics, followed."""
    fixture = Heard()
    for module in ("torchmetrics.metric", "torchmetrics.collections"):
        bridge.install(importlib.import_module(module), fixture.patches, fixture.channel)
    yield fixture
    fixture.patches.undo()


def accuracy(average: str = "micro") -> Any:
    """A metric as people use it."""
    return torchmetrics.classification.MulticlassAccuracy(num_classes=3, average=average)


def test_batch_and_epoch_are_told_apart(heard: Heard) -> None:
    """`forward` gives the batch, `compute` everything since the last reset."""
    metric = accuracy()

    batches = [float(metric(PREDICTED, TRUE)), float(metric(TRUE, TRUE))]
    whole = float(metric.compute())

    assert (batches, whole) == ([0.75, 1.0], 0.875)
    assert heard.told() == {"MulticlassAccuracy_step": 1.0, "MulticlassAccuracy": 0.875}


def test_metrics_of_one_class_are_numbered(heard: Heard) -> None:
    """One for training and one for validation."""
    train, valid = accuracy(), accuracy()

    for metric, predicted in ((train, TRUE), (valid, PREDICTED), (train, TRUE)):
        metric.update(predicted, TRUE)
        metric.compute()

    assert heard.told() == {"MulticlassAccuracy": 1.0, "MulticlassAccuracy-2": 0.75}


def test_collection_is_told_by_its_own_names(heard: Heard) -> None:
    """Its metrics are not told a second time."""
    metrics = torchmetrics.MetricCollection({"hits": accuracy(), "each": accuracy("none")}, prefix="valid/")

    metrics(PREDICTED, TRUE)
    metrics.compute()

    assert heard.told() == {"valid/hits_step": 0.75, "valid/hits": 0.75}


def test_dictionary_is_told_by_its_keys_and_what_is_no_number_is_not(heard: Heard) -> None:
    """A confusion matrix is no gauge."""
    extremes = torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())
    matrix = torchmetrics.classification.MulticlassConfusionMatrix(num_classes=3)

    extremes.update(torch.tensor(2.0))
    result = extremes.compute()
    matrix(PREDICTED, TRUE)

    assert {name: float(value) for name, value in result.items()} == {"raw": 2.0, "max": 2.0, "min": 2.0}
    assert heard.told() == {"MeanMetric": 2.0}


def test_metric_is_copied_saved_and_moved_as_before(heard: Heard) -> None:
    """Trainers clone metrics, and checkpoints hold them."""
    metric = accuracy()
    metric.update(PREDICTED, TRUE)

    copies = [copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone().double()]  # noqa: S301 - ours

    assert [float(one.compute()) for one in copies] == [0.75] * 3
    assert set(heard.told()) == {f"MulticlassAccuracy{suffix}" for suffix in ("", "-2", "-3")}


def test_composition_and_gradients_are_as_before(heard: Heard) -> None:
    """`==` and `hash` of a metric are not what they are elsewhere, and a batch's value can be a loss."""
    mean = torchmetrics.MeanMetric()
    double = mean * 2
    weight = torch.tensor(3.0, requires_grad=True)

    batch = torchmetrics.MeanSquaredError()(weight, torch.tensor(1.0))
    batch.backward()
    mean.update(torch.tensor(4.0))
    doubled = double.compute()

    assert (float(batch.detach()), weight.grad, float(doubled)) == (4.0, torch.tensor(4.0), 8.0)
    assert heard.told() == {"MeanSquaredError_step": 4.0, "MeanMetric": 4.0}


def breaks() -> int:
    """How often the graph of a function breaks that has a metric in it."""
    metric = accuracy()
    torch._dynamo.reset()
    explained = torch._dynamo.explain(lambda predicted, true: metric(predicted, true) + 1)(PREDICTED, TRUE)
    return int(explained.graph_break_count)


@pytest.mark.filterwarnings("ignore")
def test_compilers_see_nothing_of_it(heard: Heard) -> None:
    """A graph breaks as often as without us, and a metric can be scripted."""
    watched = breaks()
    torch.jit.script(accuracy())
    heard.patches.undo()

    alone = breaks()

    assert watched == alone


def test_failure_reaches_the_script(heard: Heard) -> None:
    """And the next value is told again."""
    metric = accuracy()

    with pytest.raises(ValueError, match="equal to number of classes"):
        metric(torch.ones(2, 7), TRUE)
    metric(PREDICTED, TRUE)

    assert heard.told() == {"MulticlassAccuracy_step": 0.75}


def test_other_thread_and_no_recording_are_left_alone(heard: Heard) -> None:
    """A loader's worker, or a process that records nothing."""
    heard.marker.detach()

    accuracy()(PREDICTED, TRUE)

    assert heard.told() == {}
