"""Collectives called from Python, by the methods of the process group that everything in Python ends at.

`dist.all_reduce` and its kind, however imported, object collectives, FSDP and the stages of a pipeline call them, and
then `Work.wait`. DDP's reducer and functional collectives stay in C++ and are not seen here. The functions of
`torch.distributed` stay as they are: the compiler knows them by identity.

A mark of COLLECTIVE holds the kind of the collective (operation, group, size) and its number in the group, so it needs
no event of its own. What is called inside another phase (FSDP2 in forward and backward) or on another thread has no
mark; it is counted. Events:

    collective_group  group: its name; label: what users call it; ranks: of its members, in order; none: not known
    collective_kind   kind: its number; op, group, bytes: of the larger of what goes in and what comes out
    collectives       counts: for each kind that was called since the last one, [kind, calls so far]

No call is added, nothing is waited for. Cost, in CPU time: 1.9 µs a call, 1 µs a wait, 0.1 µs a step.
"""

import functools
import sys
from collections.abc import Callable
from time import monotonic_ns
from types import CodeType
from typing import Any, Final

import torch

from trainspan.guard import warn_once
from trainspan.names import Phase
from trainspan.record.marker import Marker
from trainspan.record.patches import Patches
from trainspan.record.traced import compiler, is_traced
from trainspan.recording.layout import KIND_SHIFT, OPERAND_SHIFT, SAME_CALL, SEQUENCE_MASK, SEQUENCE_SHIFT, WAIT

FIRST_INTERVAL_NS: Final = 10_000_000_000
LAST_INTERVAL_NS: Final = 60_000_000_000
"""Between two events `collectives`: longer and longer, because the event log has a bound."""

MOST_EXACT: Final = 256
"""Kinds whose size is exact; those that come later share the next power of two."""

MOST_KINDS: Final = 512
MOST_RANKS: Final = 4096
"""Members of a group that are told one by one."""

OPERATIONS: Final = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "gather_single": "gather",
    "gather_into_tensor": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
"""What the methods do; each torch has most of them."""

_COLLECTIVE: Final = int(Phase.COLLECTIVE)
_UNKNOWN: Final = 0
_TENSOR: Final = torch.Tensor

Teller = Callable[..., None]


class Calls:
    """Counts collectives by kind, and tells of it.

    Args:
        tell: `tell("collectives", **fields)` appends an event.
        is_recording: whether it goes to a recording.
    """

    def __init__(self, tell: Teller, is_recording: Callable[[], bool]):
        self._tell = tell
        self._is_recording = is_recording
        self._kinds: dict[tuple[str, str, int], int] = {}
        self._groups: dict[str, dict[str, Any]] = {}
        self._sequences: dict[str, int] = {}
        self._counts = [0]
        self._told = [0]
        self._interval_ns = FIRST_INTERVAL_NS
        self._next_ns = 0
        self._on_first: Callable[[], None] | None = None

    def on_first(self, action: Callable[[], None]) -> None:
        """Call `action()` when the first collective is called: a rank alone pays nothing for them."""
        self._on_first = action

    def operand(self, op: str, group: Any, arguments: tuple[Any, ...]) -> int:
        """What the mark of this call holds; it is counted. Cost: 0.9 µs."""
        name = group.group_name
        size = _bytes_of(arguments[0]) if arguments else 0
        if len(arguments) > 1:
            size = max(size, _bytes_of(arguments[1]))
        kind = self._kinds.get((op, name, size))
        if kind is None:
            kind = self._add(op, name, size, group)
        self._counts[kind] += 1
        sequence = self._sequences[name] = self._sequences.get(name, -1) + 1
        return (sequence & SEQUENCE_MASK) << SEQUENCE_SHIFT | kind << KIND_SHIFT

    def begun(self) -> None:
        """A recording has been opened: it is told of everything that came before it."""
        for group in self._groups.values():
            self._tell("collective_group", **group)
        for (op, name, size), kind in self._kinds.items():
            if kind != _UNKNOWN:
                self._tell("collective_kind", kind=kind, op=op, group=name, bytes=size)
        self._told = [0] * len(self._counts)

    def step_ended(self) -> None:
        """Tell of the counts every now and then. Cost: 0.1 µs."""
        now_ns = monotonic_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + self._interval_ns
            self._interval_ns = min(self._interval_ns * 2, LAST_INTERVAL_NS)
            self.flush()

    def flush(self) -> None:
        """Tell of what was counted since the last time."""
        counts = [
            [kind, count]
            for kind, (count, told) in enumerate(zip(self._counts, self._told, strict=True))
            if count != told
        ]
        if counts and self._is_recording():
            self._told = list(self._counts)
            self._tell("collectives", counts=counts)

    def _add(self, op: str, name: str, size: int, group: Any) -> int:
        if self._on_first is not None:
            self._on_first()
            self._on_first = None
        if name not in self._groups:
            self._add_group(name, group)
        key = (op, name, size if len(self._counts) < MOST_EXACT else 1 << (size - 1).bit_length() if size else 0)
        kind = self._kinds.get(key)
        if kind is None and len(self._counts) < MOST_KINDS:
            self._counts.append(0)
            self._told.append(0)
            kind = self._kinds[key] = len(self._counts) - 1
            if self._is_recording():
                self._tell("collective_kind", kind=kind, op=op, group=name, bytes=key[2])
        return _UNKNOWN if kind is None else kind

    def _add_group(self, name: str, group: Any) -> None:
        described = getattr(group, "group_desc", "")
        try:
            ranks = torch.distributed.get_process_group_ranks(group)
        except KeyError:
            ranks = []  # made by hand: torch has never heard of it
        label = described if described and described != "undefined" else name or "unknown"
        self._groups[name] = {"group": name, "label": label, "ranks": ranks[:MOST_RANKS]}
        if self._is_recording():
            self._tell("collective_group", **self._groups[name])


def install(marker: Marker, patches: Patches, calls: Calls, step_ends: list[Callable[[], None]]) -> None:
    """Mark every collective, and every wait for one.

    Args:
        marker: where the marks go.
        patches: remembers the originals.
        calls: counts them.
        step_ends: called after every step of training; this joins with the first call.

    Raises:
        AttributeError, KeyError: this torch has no process groups, or others; collectives then show as `other`.
    """
    from torch._C._distributed_c10d import ProcessGroup, Work

    last: list[Any] = [None, 0]  # what was launched last, by whatever thread trains, and its operand
    for name, op in OPERATIONS.items():
        if name in vars(ProcessGroup):
            # As it stands in the namespace: `getattr` would take the method's binding off it for good.
            patches.replace(ProcessGroup, name, _marked(vars(ProcessGroup)[name], op, marker, calls, last))
    patches.replace(Work, "wait", _marked_wait(vars(Work)["wait"], marker, last))
    calls.on_first(lambda: step_ends.append(calls.step_ended))


def _marked(call: Callable[..., Any], op: str, marker: Marker, calls: Calls, last: list[Any]) -> Callable[..., Any]:
    enter, resume, abort = marker.enter, marker.resume, marker.abort

    def operand_of(group: Any, arguments: tuple[Any, ...]) -> int:
        try:
            return calls.operand(op, group, arguments)
        except Exception as error:
            warn_once("collective", f"a collective was not counted: {op}: {type(error).__name__}: {error}")
            return _UNKNOWN

    def collective(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag:
            return call(self, *args, **kwargs)
        operand = operand_of(self, args)
        outer = enter(operand << OPERAND_SHIFT | _COLLECTIVE)
        if outer < 0:
            return call(self, *args, **kwargs)
        try:
            work = call(self, *args, **kwargs)
            resume(outer)
        except BaseException:
            abort(outer)
            raise
        last[0], last[1] = id(work), operand
        return work

    collective.__code__ = CODES[call.__name__]
    return functools.update_wrapper(collective, call, _NAMES)


def _marked_wait(call: Callable[..., Any], marker: Marker, last: list[Any]) -> Callable[..., Any]:
    enter, resume, abort = marker.enter, marker.resume, marker.abort
    # What waits there was launched there, by the same call; what the script waits for may be an hour old.
    library = vars(torch.distributed.distributed_c10d)

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler._is_compiling_flag:
            return call(self, *args, **kwargs)
        operand = last[1] | WAIT if last[0] == id(self) else WAIT
        if sys._getframe(1).f_globals is library:
            operand |= SAME_CALL
        outer = enter(operand << OPERAND_SHIFT | _COLLECTIVE)
        if outer < 0:
            return call(self, *args, **kwargs)
        try:
            done = call(self, *args, **kwargs)
            resume(outer)
        except BaseException:
            abort(outer)
            raise
        last[0] = None  # its identity may be another one's by the next wait
        return done

    return functools.update_wrapper(wait, call, _NAMES)


_NAMES: Final = ("__name__", "__doc__")

[_code] = (code for code in _marked.__code__.co_consts if isinstance(code, CodeType) and code.co_name == "collective")
CODES: Final = {name: _code.replace(co_name=name) for name in OPERATIONS}
"""What runs in place of each method. A subclass in Python that does not have the method asks C++, which asks for a
method in Python and finds ours; only if that bears the name of the method does C++ see that it has come from there.
"""


def _bytes_of(argument: Any) -> int:
    """The size of a tensor, or of all tensors in a list of them or a list of such lists."""
    if type(argument) is list or type(argument) is tuple:
        size = 0
        for inner in argument:
            size += _bytes_of(inner)
        return size
    return int(argument.nbytes) if isinstance(argument, _TENSOR) else 0
