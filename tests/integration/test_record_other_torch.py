"""A torch without one of the names that the hooks use: one line of warning, and the rest is recorded."""

import os
import sys

import pytest

from tests.integration.recorded import REPOSITORY, Run, Training, phases_of

SCRIPT = REPOSITORY / "tests" / "scripts" / "other_torch.py"
STEP = ["data_wait", "h2d", "forward", "backward", "grad_clip", "optimizer"]

HOOK_AND_LOSS = {
    "torch.utils.data.dataloader._BaseDataLoaderIter": ("dataloader", {"data_wait", "h2d"}),
    "torch.autograd.graph._engine_run_backward": ("backward", {"backward"}),
    "torch.nn.utils.clip_grad_norm_": ("grad_clip", {"grad_clip"}),
    "torch.nn.Module._compiled_call_impl": ("forward", {"forward", "h2d"}),
    "torch.nn.Module.compile": ("forward", {"forward", "h2d"}),
    "torch.nn.Module._replicate_for_data_parallel": ("forward", {"forward", "h2d"}),
    "torch.jit._recursive.ignored_attributes": ("forward", {"forward", "h2d"}),
    "torch.amp.grad_scaler.GradScaler": ("amp", set()),
    "torch._C._distributed_c10d.Work": ("collectives", set()),
}
"""For each name the hook that does not fit without it, and the phases that are then other."""

NO_STEPS = "torch.optim.optimizer.register_optimizer_step_pre_hook"
NO_SKIP = "torch._dynamo.eval_frame.skip_code"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same training on every such torch, and on torch as it is."""
    names = ("nothing", *HOOK_AND_LOSS, NO_STEPS, NO_SKIP)
    # The hooks are put in by hand, once the name is gone: not when torch is imported.
    state = tmp_path_factory.mktemp("other")
    ended = Training([sys.executable, str(SCRIPT), *names], state, {"TRAINSPAN_ENABLED": ""}).ended()
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert [line["exit_code"] for line in ended.lines] == [0] * len(names)
    return ended


def said_of(run: Run, name: str) -> list[str]:
    """What the process without `name` has said."""
    [said] = [line["stderr"] for line in run.lines if line["name"] == name]
    return list(said)


def steps_of(run: Run, name: str) -> list[list[str]] | None:
    """The phases of its steps; None without a recording."""
    [pid] = [line["pid"] for line in run.lines if line["name"] == name]
    found = [recording for recording in run.recordings if recording.identity.pid == pid]
    return [phases_of(step) for step in found[0].steps] if found else None


def test_torch_as_it_is_needs_no_warning(run: Run) -> None:
    """Whatever is missing below is missing for its name alone."""
    assert said_of(run, "nothing") == []
    assert steps_of(run, "nothing") == [["data_wait", *STEP], STEP, STEP]


@pytest.mark.parametrize("name", HOOK_AND_LOSS)
def test_missing_name_costs_its_phase_alone(run: Run, name: str) -> None:
    """Names that begin with an underscore come and go with torch's versions."""
    hook, lost = HOOK_AND_LOSS[name]

    [warning] = said_of(run, name)
    assert warning.startswith(f"trainspan: no {hook} hook in this torch (")
    assert name.rpartition(".")[2] in warning
    assert steps_of(run, name) == [
        [phase for phase in step if phase not in lost] for step in (["data_wait", *STEP], STEP, STEP)
    ]


def test_without_optimizer_hooks_nothing_is_recorded(run: Run) -> None:
    """Without them there are no steps to see; training goes on all the same."""
    [warning] = said_of(run, NO_STEPS)

    assert warning.startswith("trainspan: no optimizer hook in this torch (")
    assert steps_of(run, NO_STEPS) is None


def test_without_a_way_to_be_skipped_the_compiler_may_complain(run: Run) -> None:
    """The user can then tell what the compiler's warnings are about."""
    [warning] = said_of(run, NO_SKIP)

    assert warning.startswith("trainspan: torch.compile may complain")
    assert steps_of(run, NO_SKIP) == [["data_wait", *STEP], STEP, STEP]


def test_names_are_those_of_the_hooks() -> None:
    """A hook that comes to use another private name belongs into the table."""
    hooks = REPOSITORY / "src" / "trainspan" / "record" / "hooks"
    text = "".join((hooks / entry).read_text() for entry in sorted(os.listdir(hooks)) if entry.endswith(".py"))

    missing = [name for name in (*HOOK_AND_LOSS, NO_STEPS) if name.rpartition(".")[2] not in text]

    assert missing == []
