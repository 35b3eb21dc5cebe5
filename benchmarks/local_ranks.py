"""Local ranks of a job on GPUs, as they record: the real writer and marker, and no torch.

What a rank of data-parallel training on CUDA leaves in a plain loop: seven phases and the code between them, one
collective a step that the script calls, batches of 8 samples and 1024 tokens, device times of the steps that have a
trace, the allocator every ten seconds, what DDP's reducer measures every hundred steps, two scalars a second, and one
checkpoint. The phases take turns in all ranks at once; the ranks are told apart by who they are.
"""

import json
import os
import sys
import threading
import time
from typing import Any, Final, NamedTuple

from trainspan.identity import Identity, trace_id_of
from trainspan.names import Phase
from trainspan.record.marker import Marker, make_marker
from trainspan.record.opening import open_writer, process_start_ns
from trainspan.record.pace import Pace
from trainspan.recording import layout
from trainspan.recording.writer import RecordingWriter
from trainspan.role import Role
from trainspan.sampling import Sampling, sampling_from
from trainspan.settings import load

SHARES: Final = (
    (Phase.DATA_WAIT, 0.03),
    (Phase.H2D, 0.01),
    (Phase.FORWARD, 0.28),
    (Phase.BACKWARD, 0.5),
    (Phase.GRAD_CLIP, 0.04),
    (Phase.COLLECTIVE, 0.02),
    (Phase.OPTIMIZER, 0.06),
)
"""What a step is made of; the rest is the script's own code. The optimizer comes last: it ends the step."""

BATCH: Final = 1024 << layout.TOKENS_SHIFT | 8
ALL_REDUCE: Final = 1
SAVED_IN_STEP: Final = 16
"""Late enough for a relay that starts beside much else: what was over before its first reading has no energy."""
FACTS: Final = {
    "training.model.class": "GPT",
    "training.model.parameters": 1_557_611_200,
    "training.precision": "bfloat16",
    "training.optimizer.class": "AdamW",
    "training.optimizer.lr": 0.0003,
    "training.optimizer.weight_decay": 0.1,
    "training.batch.size": 8,
    "training.strategy": "ddp",
}
GIB: Final = 1 << 30
MEMORY: Final = {
    "reserved_bytes": 60 * GIB,
    "allocated_bytes": 48 * GIB,
    "active_bytes": 50 * GIB,
    "allocated_peak_bytes": 55 * GIB,
    "retries": 0,
    "ooms": 0,
}
REDUCER: Final = {
    "forward_compute_ns": 4_979_130,
    "backward_compute_ns": 10_070_898,
    "backward_comm_ns": 1_785_234,
    "backward_overlap_ns": 123_747,
}


class Job(NamedTuple):
    """What is recorded: `ranks` of this node, of `world_size`, that take `steps` steps of `step_s` each."""

    ranks: int
    world_size: int
    step_s: float
    steps: int
    run: str = "volume"
    node_rank: int = 0

    def identity(self, local_rank: int) -> Identity:
        """Of one of the ranks."""
        return Identity(
            role=Role.RANK,
            run=self.run,
            attempt=0,
            rank=self.node_rank * self.ranks + local_rank,
            local_rank=local_rank,
            node_rank=self.node_rank,
            world_size=self.world_size,
            local_world_size=self.ranks,
            host=os.uname().nodename,
            pid=os.getpid(),
            launcher="torchrun",
        )


class Rank:
    """One recorded rank. It is told what it does, and when."""

    def __init__(self, job: Job, local_rank: int, sampling: Sampling):
        self.identity = job.identity(local_rank)
        self.writer: RecordingWriter = open_writer(load(os.environ)[0], self.identity)
        self.marker: Marker = make_marker(threading.get_ident)
        self.marker.attach(self.writer.words, self.writer.capacity)
        self._sampling = sampling
        self._pace = Pace(layout.EVENTS_MAX_BYTES >> 4)
        self._collectives = 0
        self._memory_ns = 0
        self._marked_ns: list[int] = []
        start_ns, now_ns = process_start_ns(), time.monotonic_ns()
        self.tell("import", module="torch", start_ns=start_ns, end_ns=now_ns)
        self.tell("span", name="training.init.model", start_ns=now_ns, end_ns=now_ns, ok=True, state="model_init")
        self.tell("device_events", from_step=1, share=None)  # torch has a device from its first step on
        self.tell("collective_group", group="0", label="default_pg", ranks=list(range(min(job.world_size, 1024))))
        self.tell("collective_kind", kind=ALL_REDUCE, op="all_reduce", group="0", bytes=4)

    def tell(self, event: str, **fields: Any) -> None:
        """Append an event."""
        self.writer.append_event({"ts": time.monotonic_ns(), "event": event, **fields})

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        code = int(phase)
        if phase is Phase.COLLECTIVE:
            operand = ALL_REDUCE << layout.KIND_SHIFT | self._collectives << layout.SEQUENCE_SHIFT
            code |= operand << layout.OPERAND_SHIFT
            self._collectives += 1
        self.marker.enter(code)

    def leave(self, phase: Phase) -> None:
        """End it; the optimizer ends the step."""
        if phase is Phase.OPTIMIZER:
            self.marker.step(0)
            self._end_step(self.marker.steps() - 1)
        elif phase is Phase.DATA_WAIT:
            self.marker.resume_with(0, BATCH)
        else:
            self.marker.resume(0)

    def close(self) -> None:
        """End in good order."""
        self.tell("collectives", counts=[[ALL_REDUCE, self._collectives]])
        self.marker.detach()
        self.writer.close(time.monotonic_ns())

    def _end_step(self, number: int) -> None:
        now_ns = time.monotonic_ns()
        self._tell_device(number)
        if number == 0:
            self.tell("facts", attributes=FACTS)
            self.tell("device", index=self.identity.local_rank, model="NVIDIA H100 80GB HBM3")
        if number == SAVED_IN_STEP:
            self._save(now_ns, number)
        if number % 100 == 0:
            self.tell("ddp", iteration=number, buckets=8, bucket_bytes=4 * GIB, **REDUCER)
        if now_ns >= self._memory_ns:
            self._memory_ns = now_ns + 10_000_000_000
            self.tell("allocator", **MEMORY)
            self.tell("collectives", counts=[[ALL_REDUCE, self._collectives]])
        if self._pace.is_due(now_ns):
            self.tell("scalars", step=number, values={"loss": 2.0 / (number + 1), "lr": 3e-4}, counters={}, dropped=0)
            self._pace.told(now_ns, 150)

    def _tell_device(self, number: int) -> None:
        """Tell what the device did of the step that has ended, if it was timed, and see to it that the next one is."""
        if self._marked_ns:
            marked_ns, self._marked_ns = self._marked_ns, []
            offsets_ns = [0, *(time_ns - marked_ns[0] + 1000 for time_ns in marked_ns)]
            self.tell("device_step", step=number, times_ns=marked_ns, offsets_ns=offsets_ns)
        self.marker.watch(None)
        trace_id = trace_id_of(self.identity.run, self.identity.attempt, "step", number + 1)
        if self._sampling.reason_for_step(number + 1, trace_id) is not None:
            self.marker.watch(self._marked_ns.append)

    def _save(self, now_ns: int, number: int) -> None:
        self.marker.enter(Phase.CHECKPOINT_SAVE)
        self.marker.resume(0)
        told = {"ok": True, "blocking": True, "staging": False, "file": "ae0e74297fcaddca", "path": "ae0e74297fcaddca"}
        self.tell(
            "checkpoint", kind="save", start_ns=now_ns, end_ns=time.monotonic_ns(), step=number, bytes=6 * GIB, **told
        )


def train(job: Job) -> None:
    """Record the job; says on stdout when it has begun and, before it closes the recordings, when it has trained."""
    os.environ["TRAINSPAN_ENABLED"] = "1"
    sampling, _ = sampling_from(os.environ)
    ranks = [Rank(job, local_rank, sampling) for local_rank in range(job.ranks)]
    print(json.dumps({"recording_dir": str(ranks[0].writer.path.parent)}), flush=True)
    for _ in range(job.steps):
        begun_s = time.monotonic()
        reached_s = begun_s
        for phase, share in SHARES:
            for rank in ranks:
                rank.enter(phase)
            reached_s += share * job.step_s
            time.sleep(max(reached_s - time.monotonic(), 0))
            for rank in ranks:
                rank.leave(phase)
        time.sleep(max(begun_s + job.step_s - time.monotonic(), 0))
    print(json.dumps({"trained": job.steps}), flush=True)
    sys.stdin.readline()  # what was sampled last is to be looked at while the ranks live
    for rank in ranks:
        rank.close()


if __name__ == "__main__":
    train(Job(**json.loads(sys.argv[1])))
