"""ONE table of every name on the wire: phases, states, spans, span and resource attributes, metrics.

Names follow OpenTelemetry's semantic conventions where they exist (`service.*`, `host.*`, `process.*`, `exception.*`);
everything else is under `training.*`, and our own health under `trainspan.*`. Units are UCUM: s, By, J, W, 1.
"""

from enum import IntEnum
from typing import Final, Literal, NamedTuple, TypeAlias


class Phase(IntEnum):
    """What a rank is doing inside a step. The number is what a mark holds (6 bits); the wire has the lower-case name.

    Exclusive: at every instant a rank is in exactly one phase. `OTHER` is the user's own code between the phases.
    Only `OTHER`, `OPTIMIZER` (it runs a closure) and what a user has named (`NamedPhase`) may hold any other phase;
    a validation may hold a checkpoint.
    """

    OTHER = 0
    OPTIMIZER = 1
    FORWARD = 2
    BACKWARD = 3
    DATA_WAIT = 4
    GRAD_CLIP = 5
    VALIDATION = 6
    H2D = 7
    GRAPH_REPLAY = 8
    CHECKPOINT_SAVE = 9
    CHECKPOINT_LOAD = 10
    COLLECTIVE = 11
    AMP = 12
    GENERATION = 13

    @property
    def wire(self) -> str:
        """The value of `training.phase`: `data_wait`."""
        return self.name.lower()

    @property
    def span(self) -> str:
        """The name of this phase's span: `training.data_wait`."""
        return f"training.{self.wire}"

    # Enum's own is a function in Python, and the relay finds every interval's phase in a dictionary.
    __hash__ = int.__hash__


CUSTOM_FIRST: Final = 32
CUSTOM_LAST: Final = 63
"""Numbers in the marks of one recording for the phases its user names; the event `phase_name` tells which is which."""

_CUSTOM_CHARACTERS: Final = 64


class NamedPhase:
    """A phase that a user has named; `named_phase` makes one object for each name."""

    __slots__ = ("name", "span", "wire")

    PREFIX: Final = "custom."
    REST: Final = "other"
    """Name of what has found no number of its own."""

    def __init__(self, name: str):
        self.name = name
        self.wire = f"{self.PREFIX}{name}"
        """The value of `training.phase`, and the state its time is charged to: `custom.tokenize`."""
        self.span = f"training.{self.wire}"

    def __repr__(self) -> str:
        return f"NamedPhase({self.name!r})"


AnyPhase: TypeAlias = "Phase | NamedPhase"

_named: dict[str, NamedPhase] = {}


def place_of(phase: AnyPhase) -> tuple[int, str]:
    """Where a phase stands among others: by its number, and what users have named behind them, by name."""
    return (CUSTOM_FIRST, phase.name) if isinstance(phase, NamedPhase) else (int(phase), "")


def named_phase(name: str) -> NamedPhase:
    """The phase of that name, always the same object. What does not belong in a name of the wire is replaced."""
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "_" for c in name[:_CUSTOM_CHARACTERS])
    return _named.setdefault(safe or NamedPhase.REST, NamedPhase(safe or NamedPhase.REST))


STATES = (
    "productive",
    "init",
    "model_init",
    "checkpoint_load",
    "compile",
    "data_wait",
    "checkpoint_save",
    "validation",
    "straggler_wait",
    "lost_work",
    "restart",
    "hang",
    "shutdown",
    "unaccounted",
)
"""Every state a rank's wall clock can be charged to; `custom.<name>` joins them when a user names one."""

# Spans that are not phases.
SPAN_ATTEMPT = "training.attempt"
SPAN_PROCESS = "training.process"
SPAN_INIT = "training.init"
SPAN_LAUNCHER = "training.launcher"
SPAN_LAUNCH = "training.launch"
SPAN_INIT_IMPORT = "training.init.import"
SPAN_INIT_PROCESS_GROUP = "training.init.process_group"
SPAN_INIT_MODEL = "training.init.model"
SPAN_INIT_WRAP = "training.init.wrap"
SPAN_INIT_OPTIMIZER = "training.init.optimizer"
SPAN_INIT_DATA_LOADER = "training.init.data_loader"
SPAN_INIT_FIRST_STEP = "training.init.first_step"
SPAN_SEGMENT = "training.segment"
SPAN_STALL = "training.stall"
SPAN_COMPILE = "training.compile"
SPAN_CHECKPOINT_SAVE = "training.checkpoint.save"
SPAN_CHECKPOINT_LOAD = "training.checkpoint.load"
SPAN_APPLICATION = "training.application"
SPAN_LOOP = "training.loop"
SPAN_VALIDATION = "training.validation"
SPAN_TESTING = "training.testing"
SPAN_GENERATION = "training.generation"
SPAN_STEP = "training.step"
SPAN_RANK_STEP = "training.rank_step"

# Resource attributes of a rank.
RUN_ID = "training.run.id"
ATTEMPT = "training.attempt"
RANK = "training.rank"
LOCAL_RANK = "training.local_rank"
NODE_RANK = "training.node_rank"
WORLD_SIZE = "training.world_size"

# Span attributes.
STEP = "training.step"
PHASE = "training.phase"
MICROBATCHES = "training.microbatches"
SAMPLED_BECAUSE = "training.sampled.reason"
END_REASON = "training.end.reason"
FIRST_STEP = "training.step.first"
LAST_STEP = "training.step.last"
DEVICE_START = "training.device.start"
DEVICE_DURATION = "training.device.duration"
SPANS_CUT = "training.spans.cut"
CHECKPOINT_PATH = "training.checkpoint.path"
CHECKPOINT_BYTES = "training.checkpoint.bytes"
SKIPPED = "training.amp.skipped"
VALIDATION_ITERATIONS = "training.validation.iterations"
COLLECTIVE_SEQ = "training.collective.seq"
COLLECTIVE_BYTES = "training.collective.bytes"
COMPILE_FUNCTION = "training.compile.function"
COMPILE_REASON = "training.compile.reason"
COMPILE_DIRECTION = "training.compile.direction"
COMPILE_OPS = "training.compile.ops"
BACKEND = "training.process_group.backend"
DATA_WORKERS = "training.data.workers"
BATCH_SIZE = "training.batch.size"
STRATEGY = "training.strategy"
MODEL_CLASS = "training.model.class"
MODEL_PARAMETERS = "training.model.parameters"
PRECISION = "training.precision"
PRECISION_AUTOCAST = "training.precision.autocast"
COMPILED = "training.compiled"
OPTIMIZER_CLASS = "training.optimizer.class"
OPTIMIZER_LR = "training.optimizer.lr"
OPTIMIZER_WEIGHT_DECAY = "training.optimizer.weight_decay"
OPTIMIZER_MOMENTUM = "training.optimizer.momentum"
OPTIMIZER_EPS = "training.optimizer.eps"
OPTIMIZER_BETA1 = "training.optimizer.beta1"
OPTIMIZER_BETA2 = "training.optimizer.beta2"
OPTIMIZER_FUSED = "training.optimizer.fused"
HW_ID = "hw.id"
STEPS_DONE = "training.steps"
GLOBAL_STEP = "training.global_step"
EPOCH = "training.epoch"
STEP_SAMPLES = "training.samples"
STEP_TOKENS = "training.tokens"

# What the script tells of itself, with `trainspan.configure`.
SESSION_TAG = "training.session_tag"
PERF_TAG = "training.perf_tag"
BASELINE = "training.baseline"
GLOBAL_BATCH_SIZE = "training.global_batch_size"
MICRO_BATCH_SIZE = "training.micro_batch_size"
SEQUENCE_LENGTH = "training.sequence_length"
FLOPS_PER_SAMPLE = "training.flops_per_sample"
FLOPS_PER_TOKEN = "training.flops_per_token"  # noqa: S105 - a token of text
TARGET_STEPS = "training.target.steps"
TARGET_SAMPLES = "training.target.samples"
TARGET_TOKENS = "training.target.tokens"
FIRST_GLOBAL_STEP = "training.first.step"
FIRST_SAMPLE = "training.first.sample"

# Metric attributes.
CLOCK = "training.clock"
STATE = "training.state"
SIGNAL = "signal"
WINDOW = "training.window"
CHECKPOINT_KIND = "training.checkpoint.kind"
CHECKPOINT_PART = "training.checkpoint.part"
CHECKPOINT_OUTCOME = "training.checkpoint.outcome"
RESTART_REASON = "training.restart.reason"
LAUNCH_OPERATION = "training.launch.operation"
LAUNCH_METRIC_NAME = "training.launch.metric.name"
ALLOCATOR_STATE = "training.allocator.memory.state"
COLLECTIVE_OP = "training.collective.op"
COLLECTIVE_GROUP = "training.collective.group"
COMPILE_KIND = "training.compile.kind"
DDP_PART = "training.ddp.part"
HW_TYPE = "hw.type"
HW_NAME = "hw.name"
HW_MODEL = "hw.model"
HW_VENDOR = "hw.vendor"
HW_DRIVER_VERSION = "hw.driver_version"
HW_PARENT = "hw.parent"
HW_STATE = "hw.state"
HW_SENSOR_LOCATION = "hw.sensor_location"
HW_GPU_TASK = "hw.gpu.task"
HW_GPU_CLOCK = "hw.gpu.clock"
HW_GPU_THROTTLE_REASON = "hw.gpu.throttle.reason"
HW_GPU_LINK = "hw.gpu.link"
ERROR_TYPE = "error.type"
IO_DIRECTION = "network.io.direction"
MISUSE_KIND = "kind"
SCALAR_NAME = "training.scalar.name"
COUNTER_NAME = "training.counter.name"

# Log events.
EVENT_STARTED = "training.started"
EVENT_ENDED = "training.ended"
EVENT_EXCEPTION = "training.exception"
EVENT_DIED = "training.died"
EVENT_OUT_OF_MEMORY = "training.out_of_memory"
EVENT_STALLED = "training.stalled"
EVENT_CONFIGURED = "training.configured"


class Name(NamedTuple):
    """One name on the wire that is not a metric, and what it stands for."""

    name: str
    meaning: str


SPANS = (
    Name(SPAN_ATTEMPT, "Root of an attempt: one incarnation of the run, over all ranks."),
    Name(SPAN_PROCESS, "One process of the attempt, from its start to its end."),
    Name(
        SPAN_LAUNCHER,
        "The launcher of a node, from its start to its end, if it worked for attempts in which no rank of the node "
        "was seen. Root of a trace that holds what it did for those.",
    ),
    Name(
        SPAN_LAUNCH,
        "What the launcher of a node did for the attempt: it met the other nodes, started or stopped workers.",
    ),
    Name(SPAN_INIT, "From the start of the process to its first step."),
    Name(SPAN_INIT_IMPORT, "The import of torch."),
    Name(SPAN_INIT_PROCESS_GROUP, "The processes of the job found each other: `init_process_group`."),
    Name(SPAN_INIT_MODEL, "The modules of the model were made, filled and moved."),
    Name(SPAN_INIT_WRAP, "The model was wrapped for several ranks: DistributedDataParallel or FSDP."),
    Name(SPAN_INIT_OPTIMIZER, "The optimizer was made."),
    Name(SPAN_INIT_DATA_LOADER, "The first iterator of a DataLoader was made, which starts its workers."),
    Name(SPAN_INIT_FIRST_STEP, "The first step, with what is done only once: compilation, autotuning, lazy state."),
    Name(SPAN_COMPILE, "The compiler made one graph of torch.compile, or one anew."),
    Name(SPAN_VALIDATION, "A loop over validation data: as the script says, or of forward passes without gradients."),
    Name(SPAN_SEGMENT, "A stretch of 60 s of training, longer after 8 hours, so that a long run shows while it runs."),
    Name(SPAN_STALL, "A rank gave no sign for far longer than its steps take: it hung, or worked without torch."),
    Name(SPAN_CHECKPOINT_SAVE, "One save of a checkpoint: a call of the library, or its work in the background."),
    Name(SPAN_CHECKPOINT_LOAD, "One load of a checkpoint."),
    Name(SPAN_APPLICATION, "What the script says is its application, from begin to end."),
    Name(SPAN_LOOP, "What the script says is its training loop."),
    Name(SPAN_TESTING, "One loop over test data."),
    Name(SPAN_GENERATION, "One loop in which the model generates."),
    Name(SPAN_STEP, "Root of a sampled step, over all ranks."),
    Name(SPAN_RANK_STEP, "One rank's part of a sampled step; holds the spans of its phases."),
)
"""Every span that is not a phase's."""

RESOURCE_ATTRIBUTES = (
    Name(RUN_ID, "The logical training job, over all its restarts."),
    Name(ATTEMPT, "Number of this incarnation of the run, from 0."),
    Name(RANK, "Rank of the process, as torch.distributed has it. Also on every span of a rank."),
    Name(LOCAL_RANK, "Rank among the processes of the same host."),
    Name(NODE_RANK, "Rank of the host in the job."),
    Name(WORLD_SIZE, "Number of ranks in the job."),
    Name(SESSION_TAG, "What the user says is one logical run, over all its restarts."),
    Name(PERF_TAG, "What the user says is alike in performance: runs with the same tag can be compared."),
)

SPAN_ATTRIBUTES = (
    Name(STEP, "Number of the step, from 0 in the attempt."),
    Name(PHASE, "What the rank was doing; one of the phases."),
    Name(MICROBATCHES, "Backward passes in the step."),
    Name(
        SAMPLED_BECAUSE,
        "Why this step has a trace: `first`, `every`, `share` or a sampler; `slow`, `straggler`, `failed`, `last`.",
    ),
    Name(
        END_REASON,
        "How the process ended: `closed` in good order; left by an `exception`; `exited` with a code other than 0; "
        "`died` without a word; `stopped` by its launcher, because of something else.",
    ),
    Name(FIRST_STEP, "First step of a segment."),
    Name(LAST_STEP, "Last step of a segment, or of a process."),
    Name(DEVICE_START, "When the device began with the phase, in s from its beginning of the step."),
    Name(DEVICE_DURATION, "How long the device took for the phase or the step, in s."),
    Name(SPANS_CUT, "Phases of this rank's step that have no span, because the trace would be too large."),
    Name(CHECKPOINT_PART, "Either `blocking`; or of an asynchronous save `staging`, which blocks, and `background`."),
    Name(CHECKPOINT_PATH, "Hash of the checkpoint's path, or the path itself where that is wished."),
    Name(CHECKPOINT_BYTES, "What was saved, in bytes: a file, or on rank 0 what went into a directory."),
    Name(
        SKIPPED,
        "True for a step that was not made: gradients were not finite, or the replicas of torchft did not commit.",
    ),
    Name(VALIDATION_ITERATIONS, "Batches of the loop, as the script counts them; or forward passes."),
    Name(COLLECTIVE_OP, "What the collective did: `all_reduce`, `send`; or `wait` for one that was launched earlier."),
    Name(COLLECTIVE_GROUP, "The process group, by its description, or else its name."),
    Name(COLLECTIVE_SEQ, "How many collectives of the group the rank had called before this one."),
    Name(COLLECTIVE_BYTES, "Size of the larger of what goes in and what comes out, in bytes."),
    Name(COMPILE_FUNCTION, "The function that was compiled."),
    Name(COMPILE_REASON, "Why it was compiled anew; missing the first time."),
    Name(COMPILE_DIRECTION, "Whether the `forward` or the `backward` was compiled."),
    Name(COMPILE_OPS, "Operations in the graph."),
    Name(BACKEND, "Backend of the process group."),
    Name(DATA_WORKERS, "Worker processes of the DataLoader."),
    Name(BATCH_SIZE, "Batch size of the first DataLoader that was iterated."),
    Name(
        STRATEGY,
        "How the model is spread: `ddp`, `fsdp1`, `fsdp2`, `zero`, `pipeline`, `deepspeed`, `megatron`, joined by `+`; "
        "or `none`.",
    ),
    Name(MODEL_CLASS, "Class of the largest model under training, below what wraps it."),
    Name(MODEL_PARAMETERS, "Parameters of the models under training that this rank holds."),
    Name(PRECISION, "Type of most of the parameters."),
    Name(PRECISION_AUTOCAST, "Type that autocast computes in; missing where it is off."),
    Name(COMPILED, "Whether the compiler was at work by the end of the first step."),
    Name(OPTIMIZER_CLASS, "Class of the optimizer."),
    Name(OPTIMIZER_LR, "Learning rate that the optimizer was made with."),
    Name(OPTIMIZER_WEIGHT_DECAY, "Weight decay that the optimizer was made with."),
    Name(OPTIMIZER_MOMENTUM, "Momentum that the optimizer was made with."),
    Name(OPTIMIZER_EPS, "Epsilon that the optimizer was made with."),
    Name(OPTIMIZER_BETA1, "First beta that the optimizer was made with."),
    Name(OPTIMIZER_BETA2, "Second beta that the optimizer was made with."),
    Name(OPTIMIZER_FUSED, "Whether the optimizer was asked to be fused."),
    Name(HW_ID, "UUID of the GPU, or of the MIG instance, that the rank uses; that of its `hw.*` metrics."),
    Name(ERROR_TYPE, "Class of the exception that left what the script has marked, or what the launcher did."),
    Name(STEPS_DONE, "Steps completed in the training loop."),
    Name(GLOBAL_STEP, "Number of the step in the run, over all attempts, as the script or its framework counts."),
    Name(EPOCH, "Number of the epoch, as the framework counts."),
    Name(STEP_SAMPLES, "Samples in the batches of the rank's step; at the end of its training, of all its steps."),
    Name(STEP_TOKENS, "Tokens in the batches of the rank's step, or of all its steps; padding included."),
    Name(BASELINE, "Whether the run is the one that others are compared with."),
    Name(GLOBAL_BATCH_SIZE, "Samples in a step, over all ranks."),
    Name(MICRO_BATCH_SIZE, "Samples in a forward of one rank."),
    Name(SEQUENCE_LENGTH, "Tokens in a sample."),
    Name(FLOPS_PER_SAMPLE, "Floating-point operations for one sample, forward and backward."),
    Name(FLOPS_PER_TOKEN, "Floating-point operations for one token, forward and backward."),
    Name(TARGET_STEPS, "Step of the run at which training is to end."),
    Name(TARGET_SAMPLES, "Samples of the run at which training is to end."),
    Name(TARGET_TOKENS, "Tokens of the run at which training is to end."),
    Name(FIRST_GLOBAL_STEP, "Number in the run of the first step of this attempt."),
    Name(FIRST_SAMPLE, "Samples of the run before the first step of this attempt."),
)
"""The last eleven are told by the script, with `trainspan.configure`, and stand on its process."""

METRIC_ATTRIBUTES = (
    Name(PHASE, "What the rank was doing; one of the phases."),
    Name(CLOCK, "Whose time it is: `host` or `device`."),
    Name(STATE, "What the wall clock is charged to; one of the states."),
    Name(WINDOW, "Which time is asked about: `run`, `attempt`, `1h` or `24h`."),
    Name(
        RESTART_REASON,
        "After a `failure`; `planned`: all ranks of the attempt before had closed in good order; `membership`: "
        "torchrun began anew with more or fewer nodes.",
    ),
    Name(
        LAUNCH_OPERATION,
        "What the launcher did: `rendezvous`, `start_workers`, `stop_workers`; at its end it waits in `exit_barrier`.",
    ),
    Name(
        LAUNCH_METRIC_NAME, "What torchelastic, or who uses its metrics, calls it; with its group if that is another."
    ),
    Name(CHECKPOINT_KIND, "What was done: `save` or `load`."),
    Name(CHECKPOINT_PART, "Either `blocking`; or of an asynchronous save `staging`, which blocks, and `background`."),
    Name(CHECKPOINT_OUTCOME, "How it ended: `success`, or `failure`: an exception left the call."),
    Name(SIGNAL, "What a batch held: `traces`, `metrics` or `logs`."),
    Name(COLLECTIVE_OP, "What the collective did: `all_reduce`, `send`; or `wait` for one that was launched earlier."),
    Name(COLLECTIVE_GROUP, "The process group, by its description, or else its name."),
    Name(COMPILE_KIND, "A `first` compilation of a function, or a `recompilation`."),
    Name(DDP_PART, "Either `forward_compute`, `backward_compute`, `backward_comm`, or `backward_overlap` of the two."),
    Name(MISUSE_KIND, "What was wrong with a call of the API: `nested`, `thread` and so on; see docs/api.md."),
    Name(SCALAR_NAME, "What was logged, by the name that the script or its framework gives it."),
    Name(COUNTER_NAME, "What the script counts."),
    Name(ALLOCATOR_STATE, "Of torch's allocator: `reserved` from the device, `active`, or `allocated` to tensors."),
    Name(HW_ID, "UUID of the GPU, or of its part, as its driver gives it; with a PCI address where parts share one."),
    Name(HW_TYPE, "What it is: `gpu`."),
    Name(HW_NAME, "The GPU by its number on this host, in the order of the driver."),
    Name(HW_MODEL, "What the maker calls it."),
    Name(HW_VENDOR, "Who made it: `NVIDIA` or `AMD`."),
    Name(HW_DRIVER_VERSION, "Version of its driver."),
    Name(HW_PARENT, "On a MIG instance or a partition alone: UUID of the GPU it is a part of."),
    Name(HW_STATE, "Of `ok`, `degraded` and `failed`, the one that holds has the value 1."),
    Name(HW_SENSOR_LOCATION, "Where the temperature is taken: `gpu` or `memory`."),
    Name(HW_GPU_TASK, "Which part of it is busy: `general`, `memory_controller`, `encoder` or `decoder`."),
    Name(HW_GPU_CLOCK, "Which clock: `sm` or `memory`."),
    Name(HW_GPU_THROTTLE_REASON, "What slows it: a power or thermal limit, of the software or of the hardware."),
    Name(HW_GPU_LINK, "Over which link: `pcie` or `nvlink`."),
    Name(ERROR_TYPE, "Memory errors `corrected` or `uncorrected`, or the number of what the driver reports: `xid_79`."),
    Name(IO_DIRECTION, "Of the bytes: `transmit` or `receive`."),
)

EVENTS = (
    Name(EVENT_STARTED, "The first step of a rank has ended; with what is trained as attributes."),
    Name(EVENT_ENDED, "A rank that has trained came to its end in good order; with what it has done as attributes."),
    Name(EVENT_EXCEPTION, "An exception left the training script."),
    Name(EVENT_DIED, "A process ended before its work was done, and no exception says why."),
    Name(EVENT_CONFIGURED, "The script has told of itself, with `trainspan.configure`."),
    Name(EVENT_OUT_OF_MEMORY, "An allocation on the device failed, whether the script went on or not."),
    Name(EVENT_STALLED, "A rank gives no sign; its time is when that began, so the first of several comes first."),
)
"""Names of log records."""


class Metric(NamedTuple):
    """One metric on the wire. `attributes` are those of its points; what identifies the rank is in the resource."""

    name: str
    instrument: Literal["histogram", "counter", "gauge", "updowncounter"]
    unit: str
    description: str
    attributes: tuple[str, ...] = ()


STEP_DURATION = Metric("training.step.duration", "histogram", "s", "Time from one step's end to the next.")
PHASE_DURATION = Metric(
    "training.phase.duration",
    "histogram",
    "s",
    "Exclusive time of one phase, summed over one step.",
    (PHASE, CLOCK),
)
OWN_TIME = Metric(
    "training.step.own_time",
    "counter",
    "s",
    "Time of a rank's steps in data_wait, h2d, forward and optimizer, where it waits for no other rank.",
    (CLOCK,),
)
STEPS = Metric("training.steps", "counter", "{step}", "Steps completed in this attempt.")
STEPS_TIMED = Metric(
    "training.steps.timed", "counter", "{step}", "Steps of which the device's time is known, of those completed."
)
TIME = Metric("training.time", "counter", "s", "Wall clock of a rank by the state it is charged to.", (STATE,))
GOODPUT = Metric(
    "training.goodput",
    "gauge",
    "1",
    "Productive share of a rank's elapsed time, with hindsight: of the whole run, of this attempt, or of late.",
    (WINDOW,),
)
STEP_DEVIATION = Metric(
    "training.step.deviation", "gauge", "s", "Median of the newest 100 step times less the ideal step time."
)
RESTARTS = Metric(
    "training.restarts", "counter", "{restart}", "Attempts of the run after the first.", (RESTART_REASON,)
)
LAUNCH_TIME = Metric(
    "training.launch.time",
    "counter",
    "s",
    "Time that the launcher of a node took, by what it did.",
    (LAUNCH_OPERATION,),
)
LAUNCH_METRIC = Metric(
    "training.launch.metric",
    "gauge",
    "{value}",
    "Last value of what was put into torchelastic's own metrics, in their own units.",
    (LAUNCH_METRIC_NAME,),
)
PROGRESS_STEP = Metric("training.progress.step", "gauge", "{step}", "Number of the last step completed.")
LAST_STEP_AGE = Metric("training.last_step.age", "gauge", "s", "Time since the last step was completed.")
STALL_AGE = Metric(
    "training.stall.age",
    "gauge",
    "s",
    "Time since a rank that is stalled gave its last sign, by the phase it is in; absent while it goes on.",
    (PHASE,),
)
CHECKPOINT_DURATION = Metric(
    "training.checkpoint.duration",
    "histogram",
    "s",
    "Time from the beginning to the end of a save or load of a checkpoint.",
    (CHECKPOINT_KIND, CHECKPOINT_PART, CHECKPOINT_OUTCOME),
)
CHECKPOINT_SIZE = Metric(
    "training.checkpoint.size",
    "gauge",
    "By",
    "Size of the largest checkpoint that the rank has saved: of a file, or on rank 0 of what went into a directory.",
)

STEPS_SKIPPED = Metric(
    "training.steps.skipped",
    "counter",
    "{step}",
    "Steps whose optimizer was skipped, of those completed: by a gradient scaler, or as replicas did not commit.",
)
COLLECTIVE_DURATION = Metric(
    "training.collective.duration",
    "histogram",
    "s",
    "Time a rank is held up by a collective that its script calls, from its call to its return.",
    (COLLECTIVE_OP, COLLECTIVE_GROUP),
)
COLLECTIVE_WAIT = Metric(
    "training.collective.wait",
    "histogram",
    "s",
    "Time in a collective beyond that of the rank of the same node that came last: waiting for that one.",
    (COLLECTIVE_OP, COLLECTIVE_GROUP),
)
COLLECTIVE_SIZE = Metric(
    "training.collective.size",
    "histogram",
    "By",
    "Size of the collectives called from Python, those inside forward and backward included.",
    (COLLECTIVE_OP, COLLECTIVE_GROUP),
)
COMPILATIONS = Metric(
    "training.compile.count", "counter", "{compilation}", "Graphs that torch.compile has made.", (COMPILE_KIND,)
)
GRAPH_BREAKS = Metric(
    "training.compile.graph_breaks", "counter", "{break}", "Places where torch.compile had to cut a graph."
)
DDP_DURATION = Metric(
    "training.ddp.duration",
    "gauge",
    "s",
    "What the reducer of DistributedDataParallel last measured of one iteration.",
    (DDP_PART,),
)
DDP_BUCKET_SIZE = Metric(
    "training.ddp.bucket.size", "gauge", "By", "Size of all gradient buckets of DistributedDataParallel."
)
SAMPLES = Metric("training.samples", "counter", "{sample}", "Samples in the batches of a rank's completed steps.")
TOKENS = Metric(
    "training.tokens", "counter", "{token}", "Tokens in the batches of a rank's completed steps, padding included."
)
FLOPS = Metric("training.flops", "counter", "{operation}", "Floating-point operations of the model, where known.")
MFU = Metric(
    "training.mfu", "gauge", "1", "FLOPs of a rank's newest 1024 steps over what its device could do in their time."
)
PROGRESS_EPOCH = Metric("training.progress.epoch", "gauge", "{epoch}", "Epoch, as the framework counts.")
PROGRESS_GLOBAL_STEP = Metric(
    "training.progress.global_step", "gauge", "{step}", "Steps of the run over all attempts, as the framework counts."
)
SCALAR = Metric(
    "training.scalar", "gauge", "{value}", "Last value of what the script or its framework logs.", (SCALAR_NAME,)
)
COUNTER = Metric("training.counter", "counter", "{count}", "What the script counts by itself.", (COUNTER_NAME,))

ALLOCATOR_USAGE = Metric(
    "training.allocator.memory.usage",
    "gauge",
    "By",
    "Memory of torch's allocator on the rank's device.",
    (ALLOCATOR_STATE,),
)
ALLOCATOR_PEAK = Metric("training.allocator.memory.peak", "gauge", "By", "Most memory that tensors ever held.")
ALLOCATOR_RETRIES = Metric(
    "training.allocator.retries", "counter", "{retry}", "Allocations that succeeded only after the cache was flushed."
)
ALLOCATOR_OOMS = Metric("training.allocator.ooms", "counter", "{error}", "Allocations that failed.")

ENERGY = Metric(
    "training.energy",
    "counter",
    "J",
    "Energy of the rank's GPU while it trained, by the phase it was in; from windows, not from single steps.",
    (PHASE,),
)
CARBON = Metric("training.carbon", "counter", "g", "Energy of the rank's GPU times TRAINSPAN_CARBON_G_PER_KWH.")

_GPU = (HW_ID, HW_TYPE, HW_NAME, HW_MODEL, HW_VENDOR, HW_DRIVER_VERSION)
HW_GPU_UTILIZATION = Metric(
    "hw.gpu.utilization",
    "gauge",
    "1",
    "Share of the last moments in which it was at work.",
    (*_GPU, HW_GPU_TASK),
)
HW_GPU_MEMORY_USAGE = Metric("hw.gpu.memory.usage", "updowncounter", "By", "Memory in use, by whomever.", _GPU)
HW_GPU_MEMORY_LIMIT = Metric("hw.gpu.memory.limit", "updowncounter", "By", "Memory it has.", _GPU)
HW_GPU_MEMORY_UTILIZATION = Metric("hw.gpu.memory.utilization", "gauge", "1", "Share of its memory in use.", _GPU)
HW_POWER = Metric("hw.power", "gauge", "W", "Power that the whole board draws.", _GPU)
HW_ENERGY = Metric("hw.energy", "counter", "J", "Energy that the whole board has drawn since the relay began.", _GPU)
HW_TEMPERATURE = Metric("hw.temperature", "gauge", "Cel", "Temperature.", (*_GPU, HW_SENSOR_LOCATION))
HW_ERRORS = Metric("hw.errors", "counter", "{error}", "Errors since the relay began.", (*_GPU, ERROR_TYPE))
HW_STATUS = Metric("hw.status", "updowncounter", "1", "Whether it is in this state: 1, or 0.", (*_GPU, HW_STATE))
HW_GPU_SPEED = Metric("hw.gpu.speed", "gauge", "Hz", "Frequency of a clock.", (*_GPU, HW_GPU_CLOCK))
HW_GPU_THROTTLED = Metric(
    "hw.gpu.throttled", "gauge", "1", "Whether it is slowed for this reason: 1, or 0.", (*_GPU, HW_GPU_THROTTLE_REASON)
)
HW_GPU_IO = Metric(
    "hw.gpu.io", "counter", "By", "Bytes over its links since the relay began.", (*_GPU, HW_GPU_LINK, IO_DIRECTION)
)

MARKS = Metric("trainspan.marks", "counter", "{mark}", "Marks read from the recordings.")
MARKS_LOST = Metric("trainspan.marks.lost", "counter", "{mark}", "Marks overwritten before they were read.")
EVENTS_DROPPED = Metric("trainspan.events.dropped", "counter", "{event}", "Events a rank dropped at its bound.")
RECORDING_ERRORS = Metric(
    "trainspan.recording.errors", "counter", "{error}", "Torn or hostile bytes in recordings, and recordings given up."
)
MISUSE = Metric("trainspan.misuse", "counter", "{call}", "Calls of the API that made no sense.", (MISUSE_KIND,))
SCALARS_DROPPED = Metric(
    "trainspan.scalars.dropped", "counter", "{value}", "Logged values that a bound or their kind kept out."
)
RELAY_LAG = Metric("trainspan.relay.lag", "gauge", "s", "Age of the oldest mark that the last look consumed.")
SPANS_DROPPED = Metric("trainspan.spans.dropped", "counter", "{span}", "Spans cut off at the bound of one trace.")
EXPORTS = Metric("trainspan.exports", "counter", "{batch}", "Batches the endpoint accepted.", (SIGNAL,))
EXPORT_FAILURES = Metric(
    "trainspan.export.failures", "counter", "{attempt}", "Attempts to deliver a batch that failed.", (SIGNAL,)
)
EXPORT_REJECTED = Metric(
    "trainspan.export.rejected",
    "counter",
    "{item}",
    "Spans, points and records left out of batches taken.",
    (SIGNAL,),
)
SPOOL_SIZE = Metric("trainspan.spool.size", "gauge", "By", "Bytes on disk not yet delivered.", (SIGNAL,))
SPOOL_DROPPED = Metric("trainspan.spool.dropped", "counter", "{batch}", "Batches dropped from a full spool.", (SIGNAL,))
RELAY_CPU = Metric("trainspan.relay.cpu.time", "counter", "s", "CPU time the relay has used.")

METRICS = (
    STEP_DURATION,
    PHASE_DURATION,
    OWN_TIME,
    STEPS,
    STEPS_TIMED,
    TIME,
    GOODPUT,
    STEP_DEVIATION,
    RESTARTS,
    LAUNCH_TIME,
    LAUNCH_METRIC,
    PROGRESS_STEP,
    LAST_STEP_AGE,
    STALL_AGE,
    CHECKPOINT_DURATION,
    CHECKPOINT_SIZE,
    STEPS_SKIPPED,
    COLLECTIVE_DURATION,
    COLLECTIVE_WAIT,
    COLLECTIVE_SIZE,
    COMPILATIONS,
    GRAPH_BREAKS,
    DDP_DURATION,
    DDP_BUCKET_SIZE,
    SAMPLES,
    TOKENS,
    FLOPS,
    MFU,
    PROGRESS_EPOCH,
    PROGRESS_GLOBAL_STEP,
    SCALAR,
    COUNTER,
    ALLOCATOR_USAGE,
    ALLOCATOR_PEAK,
    ALLOCATOR_RETRIES,
    ALLOCATOR_OOMS,
    ENERGY,
    CARBON,
    HW_GPU_UTILIZATION,
    HW_GPU_MEMORY_USAGE,
    HW_GPU_MEMORY_LIMIT,
    HW_GPU_MEMORY_UTILIZATION,
    HW_POWER,
    HW_ENERGY,
    HW_TEMPERATURE,
    HW_ERRORS,
    HW_STATUS,
    HW_GPU_SPEED,
    HW_GPU_THROTTLED,
    HW_GPU_IO,
    MARKS,
    MARKS_LOST,
    EVENTS_DROPPED,
    RECORDING_ERRORS,
    MISUSE,
    SCALARS_DROPPED,
    RELAY_LAG,
    SPANS_DROPPED,
    EXPORTS,
    EXPORT_FAILURES,
    EXPORT_REJECTED,
    SPOOL_SIZE,
    SPOOL_DROPPED,
    RELAY_CPU,
)

SCOPE = "trainspan"
"""Name of the instrumentation scope of everything exported."""
