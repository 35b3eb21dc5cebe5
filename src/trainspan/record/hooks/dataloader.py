"""Data wait: the training thread asks a DataLoader for a batch and gets it.

`_BaseDataLoaderIter.__next__` is patched on the class, so that iterators made earlier, all worker kinds and torchdata's
StatefulDataLoader (whose `__next__` calls it) are covered. Making the iterator counts too: it starts the workers.
What the batch holds goes with the mark of its arrival, so that the relay counts it where the batch went: into a step of
training or into a validation. Cost: 0.9 µs a batch.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DataLoader, dataloader

from trainspan.names import Phase
from trainspan.record.batches import OPERAND_MAX, BatchMeter, Measure
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced

_DATA_WAIT = int(Phase.DATA_WAIT)


def install(marker: Marker, patches: Patches, first_batch: Sequence[Callable[[Any], None]] = ()) -> None:
    """Mark every wait for a batch.

    Args:
        marker: where the marks go.
        patches: remembers the originals.
        first_batch: each is called with an iterator that has given its first batch; more may join.

    Raises:
        AttributeError, KeyError: this torch has no such iterator class; the wait then shows as `other`.
    """
    iterator = dataloader._BaseDataLoaderIter
    patches.replace(iterator, "__next__", marked(vars(iterator)["__next__"], marker, BatchMeter(), first_batch))
    patches.replace(DataLoader, "__iter__", marked(vars(DataLoader)["__iter__"], marker, None))


def marked(
    call: Callable[[Any], Any],
    marker: Marker,
    meter: BatchMeter | None,
    first_batch: Sequence[Callable[[Any], None]] = (),
) -> Callable[[Any], Any]:
    """`call`, marked; with a meter, what it returns is a batch. `first_batch`: as of `install`."""
    enter, resume, abort, resume_with = marker.enter, marker.resume, marker.abort, marker.resume_with
    measures: dict[type, Measure] = {} if meter is None else meter.measures

    def wait_for_batch(self: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag:
            return call(self)
        outer = enter(_DATA_WAIT)
        if outer < 0:
            return call(self)
        try:
            try:
                batch = call(self)
            except StopIteration:
                resume(outer)  # the end of an epoch is no failure
                raise
            if meter is None:
                resume(outer)
                return batch
            try:
                operand = measures[type(batch)](batch)
            except Exception:
                operand = meter.learn(batch, self)
            resume_with(outer, operand if operand <= OPERAND_MAX else 0)
        except StopIteration:
            raise
        except BaseException:
            abort(outer)
            raise
        if first_batch and self._num_yielded == 1:
            for told in first_batch:
                told(self)
        return batch

    return functools.update_wrapper(wait_for_batch, call)
