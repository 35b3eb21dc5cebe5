"""Frameworks, as they are installed: nothing about them changes, and what only they know is told."""

from importlib.util import find_spec
from typing import Any

import pytest

from tests.integration.recorded import Pair, in_good_order, phases_of, run_both

PACKAGES = ("lightning", "pytorch_lightning", "transformers", "accelerate")
SCENARIOS = (*PACKAGES, "fabric")

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, PACKAGES)),
    reason="not all frameworks are installed: would show that nothing about them changes, and what is heard of them",
)

FETCH = "data_wait"
BATCH = ["h2d", "forward", "backward"]
END = ["grad_clip", "optimizer"]
# Lightning computes the last micro-batch of a step inside the optimizer's step.
CLOSURE = ["optimizer", "forward", "optimizer", "backward", "optimizer", "grad_clip", "optimizer"]
LIGHTNING = [FETCH, *BATCH, FETCH, *CLOSURE]
# It makes the loader's iterator before it says that validation begins; what leads there is part of it.
LIGHTNING_VALIDATION = ["validation"] * 3
HUGGING_FACE = [FETCH, FETCH, *BATCH, "forward", "backward", *END]
ACCELERATE = [FETCH, *BATCH, FETCH, *BATCH, *END]
FABRIC = [FETCH, *BATCH, FETCH, *BATCH, "optimizer"]
# A loop of the user's own: two batches, of which the first and what lies before it are told apart by their forward.
VALIDATION = [FETCH, FETCH, *["validation"] * 6]

PHASES = {
    "lightning": [
        [FETCH, *LIGHTNING],
        *[LIGHTNING] * 3,
        [*LIGHTNING_VALIDATION, "checkpoint_save", FETCH, *LIGHTNING],
        *[LIGHTNING] * 3,
    ],
    "transformers": [
        [FETCH, FETCH, *HUGGING_FACE],
        *[HUGGING_FACE] * 3,
        ["checkpoint_save", "validation", FETCH, FETCH, *HUGGING_FACE],
        *[HUGGING_FACE] * 3,
        ["checkpoint_save", "validation", *["checkpoint_load"] * 4, FETCH, FETCH, *HUGGING_FACE],
        *[HUGGING_FACE] * 3,
    ],
    "accelerate": [
        [FETCH, FETCH, *ACCELERATE],
        *[ACCELERATE] * 3,
        [*VALIDATION, FETCH, FETCH, *ACCELERATE],
        *[ACCELERATE] * 3,
    ],
}
"""Of each step. The second trainer of Hugging Face resumes after four steps."""
PHASES["pytorch_lightning"] = PHASES["lightning"]
PHASES["fabric"] = [[FETCH, *FABRIC], *[FABRIC] * 3]

VALIDATIONS = {"lightning": 1, "pytorch_lightning": 1, "transformers": 2, "accelerate": 1, "fabric": 0}
"""Steps that hold a validation, each of two batches; another one follows the last step."""

LAST_PHASES = {
    "lightning": [*LIGHTNING_VALIDATION, "checkpoint_save", *LIGHTNING_VALIDATION],
    "transformers": ["checkpoint_save", "validation"],
    "accelerate": [*VALIDATION, "checkpoint_save", "checkpoint_load"],
}
LAST_PHASES["pytorch_lightning"] = LAST_PHASES["lightning"]
LAST_PHASES["fabric"] = [FETCH, "checkpoint_save", "checkpoint_load"]

# Fetched ahead: a step has the batches that were there when its forward began.
AHEAD = [12, 8, 8, 4]
SAMPLES = {
    "lightning": [16] * 8,
    "pytorch_lightning": [16] * 8,
    "transformers": AHEAD * 3,
    "accelerate": [24, 16, 16, 8] * 2,
    "fabric": [16] * 4,
}

COURSE = {
    "lightning": [(0, 1, 0), (4, 5, 1)],
    "pytorch_lightning": [(0, 1, 0), (4, 5, 1)],
    "transformers": [(0, 1, 0), (4, 5, 1), (8, 5, 1)],
    "accelerate": [],
    "fabric": [],
}
"""From which step on, the global step, the epoch."""

SCALARS = {
    "lightning": {"loss", "loss_step", "loss_epoch", "val_loss", "test_loss"},
    "pytorch_lightning": {"loss", "loss_step", "loss_epoch", "val_loss", "test_loss"},
    "transformers": {"loss", "learning_rate", "grad_norm", "epoch", "eval_loss", "train_loss"},
    "accelerate": {"loss", "val_loss"},
    "fabric": {"loss"},
}
LAST_STEP = {"accelerate": 8, "fabric": 3}
"""As the script calls it with what it logs."""

RANKS = 2


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """All of them, with and without trainspan."""
    return run_both("frameworks.py", *SCENARIOS, state=tmp_path_factory.mktemp("frameworks"))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Accelerate on two ranks, with and without trainspan."""
    return run_both("frameworks.py", "accelerate", state=tmp_path_factory.mktemp("ranks"), ranks=RANKS)


@pytest.fixture(scope="module")
def lightning_ranks(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Lightning on two ranks that it starts by itself, with and without trainspan."""
    return run_both("frameworks.py", "lightning_ddp", state=tmp_path_factory.mktemp("lightning-ranks"))


def told(pair: Pair, scenario: str, event: str, rank: int = 0) -> list[dict[str, Any]]:
    """The events of one kind of the process that ran `scenario`."""
    return [one for one in pair.recording_of(scenario, rank).events if one["event"] == event]


def test_nothing_in_the_process_differs(frameworks: Pair) -> None:
    """Weights, generators, threads, sockets, what the framework itself says it has logged and how far it is."""
    differences = frameworks.differences("pid")

    assert differences == [{}] * (2 * len(SCENARIOS))
    assert {line["exit_code"] for line in frameworks.recorded.lines if "name" in line} == {0}
    assert not any(line.startswith("trainspan:") for line in frameworks.recorded.stderr.splitlines())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_steps_have_their_phases_in_order(frameworks: Pair, scenario: str) -> None:
    """The same hooks see them all; evaluations and checkpoints are told as wholes."""
    recording = frameworks.recording_of(scenario)

    assert [phases_of(step) for step in recording.steps] == PHASES[scenario]
    assert recording.unfinished is not None
    assert phases_of(recording.unfinished) == LAST_PHASES[scenario]
    assert {step.microbatches for step in recording.steps} == {2}
    assert [step.validations for step in recording.steps if step.validations] == [2] * VALIDATIONS[scenario]
    assert in_good_order(recording)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_samples_are_those_of_training_alone(frameworks: Pair, scenario: str) -> None:
    """The batches of an evaluation come from a loader like any other, and one is fetched ahead."""
    steps = frameworks.recording_of(scenario).steps

    tokens = [8 * samples for samples in SAMPLES[scenario]] if scenario == "transformers" else [None] * len(steps)
    assert [step.samples for step in steps] == SAMPLES[scenario]
    assert [step.tokens for step in steps] == tokens


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_epoch_and_global_step_are_those_of_the_framework(frameworks: Pair, scenario: str) -> None:
    """After a restart the attempt's steps begin anew, and the loss curve does not."""
    course = [(event["step"], event["global_step"], event["epoch"]) for event in told(frameworks, scenario, "progress")]

    assert course == COURSE[scenario]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_logged_is_told(frameworks: Pair, scenario: str) -> None:
    """As the framework names it, up to the last value; Accelerate says its step with it."""
    events = told(frameworks, scenario, "scalars")

    names = {name for event in events for name in event["values"]}
    assert names >= SCALARS[scenario]
    assert all(isinstance(value, float) for event in events for value in event["values"].values())
    assert events[-1].get("global_step") == LAST_STEP.get(scenario)


@pytest.mark.parametrize(
    ("scenario", "steps"),
    [
        ("lightning", [4, 8]),
        ("pytorch_lightning", [4, 8]),
        ("transformers", [4, 8, 12]),
        ("accelerate", [8]),
        ("fabric", [4]),
    ],
)
def test_checkpoint_is_one_whatever_its_files(frameworks: Pair, scenario: str, steps: list[int]) -> None:
    """Half a checkpoint is nothing to resume from; what is loaded is told by the name under which it was saved."""
    checkpoints = told(frameworks, scenario, "checkpoint")

    saves = [event for event in checkpoints if event["kind"] == "save"]
    loads = {event["file"] for event in checkpoints if event["kind"] == "load"}
    assert [(event["step"], event["ok"]) for event in saves] == [(step, True) for step in steps]
    if loads:
        assert saves[0]["file"] in loads
    assert all((event["bytes"] or event["directory_bytes"]) > 1000 for event in saves)


def test_two_ranks_differ_in_nothing(ranks: Pair) -> None:
    """What a bridge asks of another rank could hang the job."""
    differences = ranks.differences("pid", "sockets", "threads")

    assert differences == [{}] * RANKS
    assert ranks.recorded.exit_code == 0


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_rank_tells_its_own(ranks: Pair, rank: int) -> None:
    """Trackers hear the main process alone; a rank whose loss is no number is another one."""
    recording = ranks.recording_of("accelerate", rank)

    names = {name for event in told(ranks, "accelerate", "scalars", rank) for name in event["values"]}
    kinds = [event["kind"] for event in told(ranks, "accelerate", "checkpoint", rank)]
    assert [step.samples for step in recording.steps] == SAMPLES["accelerate"]
    assert {step.microbatches for step in recording.steps} == {2}
    assert names == SCALARS["accelerate"]
    assert kinds == ["save", "load"]


def test_directory_of_a_checkpoint_is_measured_by_the_first_rank(ranks: Pair) -> None:
    """Each rank's save is of the same directory; a thousand that look into it would be a burden to a file system."""
    sizes = [told(ranks, "accelerate", "checkpoint", rank)[0]["directory_bytes"] for rank in range(RANKS)]

    assert sizes[0] > 1000
    assert sizes[1:] == [None] * (RANKS - 1)


def test_ranks_that_lightning_starts_are_one_run(lightning_ranks: Pair) -> None:
    """`python train.py` with two devices: no launcher has named run or rank."""
    identities = [recording.identity for recording in lightning_ranks.recorded.recordings]

    assert [(one.rank, one.world_size, one.local_world_size) for one in identities] == [(0, 2, 2), (1, 2, 2)]
    assert len({one.run for one in identities}) == 1
    assert lightning_ranks.differences("pid", "sockets", "threads") == [{}] * RANKS


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_rank_of_lightning_tells_its_own(lightning_ranks: Pair, rank: int) -> None:
    """Metrics of each rank, before anything is averaged over them."""
    recording = lightning_ranks.recording_of("lightning_ddp", rank)

    progress, scalars, checkpoints = (
        told(lightning_ranks, "lightning_ddp", kind, rank) for kind in ("progress", "scalars", "checkpoint")
    )
    # Lightning and DistributedDataParallel talk to the other rank in between; what they say differs by version.
    phases = [[phase for phase in phases_of(step) if phase != "collective"] for step in recording.steps]
    first_of_epoch = [*LIGHTNING_VALIDATION, "checkpoint_save", FETCH, *LIGHTNING]
    assert phases == [[FETCH, *LIGHTNING], LIGHTNING, first_of_epoch, LIGHTNING]
    assert [(event["step"], event["global_step"]) for event in progress] == [(0, 1), (2, 3)]
    assert {name for event in scalars for name in event["values"]} >= SCALARS["lightning"]
    assert [event["kind"] for event in checkpoints] == ["save", "save"]
