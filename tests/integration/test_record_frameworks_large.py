"""DeepSpeed and Megatron Core, as they are installed, on the CPU: nothing about them changes, and steps are theirs."""

import sys
from importlib.util import find_spec
from itertools import groupby
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.recorded import SCRIPTS, Pair, Recording, Run, Training, in_good_order, phases_of, run_both
from trainspan.relay.timeline.records import RankStep

PACKAGES = ("deepspeed", "megatron")
ALONE = ("deepspeed_fp32", "deepspeed_fp16", "megatron_plain", "megatron_fp16")
SPREAD = (
    "deepspeed_zero2",
    "deepspeed_zero3",
    "deepspeed_pipeline",
    "megatron_distributed_optimizer",
    "megatron_tensor",
    "megatron_pipeline",
)
RANKS = 2
EVERYWHERE = [*((name, 0) for name in ALONE), *((name, rank) for name in SPREAD for rank in range(RANKS))]
"""Each scenario, on each of its ranks."""

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, PACKAGES)),
    reason="DeepSpeed or Megatron Core is not installed: would show that their steps are seen as they make them",
)

FETCHED = ["data_wait", "h2d", "forward", "backward"]
COMPUTED = ["forward", "backward"]
CLIPPED = ["optimizer", "grad_clip", "optimizer"]
# Megatron computes the norm, and scales by it, in a function each.
CLIPPED_IN_TWO = [*CLIPPED, "grad_clip", "optimizer"]
HELD_BACK = [*COMPUTED, *COMPUTED, "optimizer"]

PHASES: dict[tuple[str, int], list[list[str]]] = {
    ("deepspeed_fp32", 0): [[*FETCHED, *FETCHED, *CLIPPED]] * 4,
    ("deepspeed_fp16", 0): [[*FETCHED, *FETCHED, "optimizer"]] * 4,
    ("deepspeed_zero2", 0): [[*FETCHED, *FETCHED, "optimizer"]] * 4,
    ("deepspeed_zero3", 0): [[*FETCHED, *FETCHED, "optimizer"]] * 4,
    # The first stage runs ahead by a micro-batch.
    ("deepspeed_pipeline", 0): [[*FETCHED[:3], *FETCHED[:3], "backward", *CLIPPED]] * 3,
    ("deepspeed_pipeline", 1): [[*FETCHED, *FETCHED, *CLIPPED]] * 3,
    ("megatron_plain", 0): [[*COMPUTED, *COMPUTED, *CLIPPED_IN_TWO]] * 4,
    ("megatron_fp16", 0): [HELD_BACK] * 2 + [[*COMPUTED, *COMPUTED, *CLIPPED_IN_TWO]] * 2,
    ("megatron_distributed_optimizer", 0): [[*COMPUTED, *COMPUTED, *CLIPPED_IN_TWO]] * 4,
    ("megatron_tensor", 0): [[*COMPUTED, *COMPUTED, *CLIPPED_IN_TWO]] * 4,
    ("megatron_pipeline", 0): [["forward", "backward", *CLIPPED_IN_TWO]] * 4,
    ("megatron_pipeline", 1): [[*COMPUTED, *COMPUTED, *CLIPPED_IN_TWO]] * 4,
}
"""Of each step on each rank, or on all as on the first: in order, told once where they follow each other."""

SKIPPED = {"deepspeed_fp16": 2, "megatron_fp16": 2}
"""Steps at the beginning whose gradients were infinite."""

SAVES = {
    "deepspeed_fp32": ["save", "load"],
    "deepspeed_fp16": ["save", "load"],
    "deepspeed_zero2": ["save", "load"],
    "deepspeed_zero3": ["save"],
    "megatron_plain": ["save", "load"],
    "megatron_distributed_optimizer": ["save", "load"],
}

SCALARS = {
    "deepspeed_fp32": {"lr", "loss"},
    "deepspeed_fp16": {"lr", "loss", "loss_scale", "grad_norm"},
    "deepspeed_zero2": {"lr", "loss", "grad_norm"},
    "deepspeed_zero3": {"lr", "loss", "grad_norm"},
    "deepspeed_pipeline": {"lr"},
    "megatron_plain": {"lr", "grad_norm"},
    "megatron_fp16": {"lr", "grad_norm", "loss_scale"},
    "megatron_distributed_optimizer": {"lr", "grad_norm"},
    "megatron_tensor": {"lr", "grad_norm"},
    "megatron_pipeline": {"lr", "grad_norm"},
}
"""At least; only the last stage of a pipeline has a loss."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """One rank, with and without trainspan."""
    return run_both("large.py", *ALONE, state=tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two ranks under torchrun, with and without trainspan."""
    return run_both("large.py", *SPREAD, state=tmp_path_factory.mktemp("ranks"), ranks=RANKS)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two ranks that DeepSpeed's own launcher starts, recorded."""
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", f"--num_gpus={RANKS}"]
    command = [*launcher, str(SCRIPTS / "large.py"), "deepspeed_fp32"]
    more = {"JOB": uuid4().hex, "DS_ACCELERATOR": "cpu"}
    return Training(command, tmp_path_factory.mktemp("launched"), more).ended()


@pytest.fixture
def recording(request: pytest.FixtureRequest, scenario: str, rank: int) -> Recording:
    """That of one scenario on one rank."""
    pair: Pair = request.getfixturevalue("alone" if scenario in ALONE else "ranks")
    return pair.recording_of(scenario, rank)


on_every_rank = pytest.mark.parametrize(("scenario", "rank"), EVERYWHERE)


def told_apart(step: RankStep) -> list[str]:
    """The phases of a step in order, without collectives: which of them are called differs by version and by rank."""
    return [phase for phase, _ in groupby(phase for phase in phases_of(step) if phase != "collective")]


def told(recording: Recording, event: str) -> list[dict[str, Any]]:
    """The events of one kind."""
    return [one for one in recording.events if one["event"] == event]


def test_nothing_in_the_process_differs(alone: Pair) -> None:
    """Weights and generators bit for bit, and what the engines themselves count."""
    differences = alone.differences("pid")

    assert differences == [{}] * (2 * len(ALONE))
    assert {line["exit_code"] for line in alone.recorded.lines if "name" in line} == {0}
    assert not any(line.startswith("trainspan:") for line in alone.recorded.stderr.splitlines())


def test_two_ranks_differ_in_nothing(ranks: Pair) -> None:
    """The same, where each waits for the other; sockets and threads of theirs come and go."""
    differences = ranks.differences("pid", "sockets", "threads")

    assert differences == [{}] * (2 * len(SPREAD) * RANKS)
    assert {line["exit_code"] for line in ranks.recorded.lines if "name" in line} == {0}
    assert not any(line.startswith("trainspan:") for line in ranks.recorded.stderr.splitlines())


@on_every_rank
def test_steps_have_their_phases_in_order(recording: Recording, scenario: str, rank: int) -> None:
    """ZeRO steps the inner optimizer once for each group of parameters, a chain of Megatron several: one step each."""
    expected = PHASES.get((scenario, rank), PHASES[scenario, 0])

    phases = [told_apart(step) for step in recording.steps]

    assert phases == expected
    assert {step.microbatches for step in recording.steps} == {2}
    assert in_good_order(recording)


@on_every_rank
def test_skipped_step_is_a_step_that_says_so(recording: Recording, scenario: str) -> None:
    """No optimizer of torch's has stepped in it: its micro-batches are not those of the next one."""
    skipped = [step.skipped for step in recording.steps]

    few = SKIPPED.get(scenario, 0)
    assert skipped == [True] * few + [False] * (len(skipped) - few)


@on_every_rank
def test_checkpoint_is_one_whatever_its_files(recording: Recording, scenario: str) -> None:
    """Every rank writes files of its own; what is loaded is what was saved."""
    checkpoints = told(recording, "checkpoint")

    assert [event["kind"] for event in checkpoints] == SAVES.get(scenario, [])
    assert {(event["step"], event["ok"]) for event in checkpoints} <= {(len(recording.steps), True)}
    assert len({event["file"] for event in checkpoints}) == bool(checkpoints)


@on_every_rank
def test_what_the_framework_knows_is_told(recording: Recording, scenario: str) -> None:
    """Without a tracker, of each rank by itself; DeepSpeed also counts its steps over all attempts."""
    package = scenario.partition("_")[0]

    names = {name for event in told(recording, "scalars") for name in event["values"]}
    course = [(event["step"], event["global_step"]) for event in told(recording, "progress")]
    assert names >= {f"{package}.{name}" for name in SCALARS[scenario]}
    assert course == ([(0, 1)] if package == "deepspeed" else [])


@pytest.mark.parametrize("scenario", ["deepspeed_fp32", "deepspeed_zero3"])
def test_evaluation_is_validation(alone: Pair, ranks: Pair, scenario: str) -> None:
    """An engine stays in training mode itself when it evaluates: only the model in it does not."""
    recording = (alone if scenario in ALONE else ranks).recording_of(scenario)

    assert recording.unfinished is not None
    assert recording.unfinished.validations == 2
    assert "forward" not in phases_of(recording.unfinished)


@pytest.mark.parametrize(
    ("scenario", "model", "parameters", "strategy"),
    [("deepspeed_zero3", "Sequential", 577, "deepspeed"), ("megatron_tensor", "GPTModel", 4560, "megatron")],
)
def test_facts_are_those_below_what_wraps_the_model(
    ranks: Pair, scenario: str, model: str, parameters: int, strategy: str
) -> None:
    """ZeRO-3 leaves parameters empty between their uses; a rank of a tensor-parallel group holds a part of them."""
    [facts] = told(ranks.recording_of(scenario), "facts")

    attributes = facts["attributes"]
    assert attributes["training.model.class"] == model
    assert attributes["training.model.parameters"] == parameters
    assert attributes["training.optimizer.class"] == "AdamW"
    assert attributes["training.strategy"] == strategy


def test_ranks_that_deepspeed_launches_are_one_run(launched: Run) -> None:
    """Its launcher gives the run no name, and is no rank itself, nor is what it starts to start them."""
    identities = [recording.identity for recording in launched.recordings]

    assert launched.exit_code == 0
    assert [(one.role, one.rank, one.world_size, one.local_world_size) for one in identities] == [
        ("rank", 0, RANKS, RANKS),
        ("rank", 1, RANKS, RANKS),
    ]
    assert len({one.run for one in identities}) == 1
    assert [len(recording.steps) for recording in launched.recordings] == [4, 4]
