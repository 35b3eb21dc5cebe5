"""Two ranks under torchrun, DistributedDataParallel on gloo, with accumulation that skips the sync."""

import pytest

from tests.integration.recorded import Pair, in_good_order, phases_of, run_both

BATCH = ["forward", "backward"]
END = ["grad_clip", "optimizer"]


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The job, with and without trainspan."""
    return run_both("ddp.py", state=tmp_path_factory.mktemp("ddp"), ranks=2)


def test_nothing_in_the_ranks_differs(ddp: Pair) -> None:
    """Weights and generators, and the sockets and threads that gloo has by itself."""
    differences = ddp.differences("pid")

    assert differences == [{}, {}]
    assert not any(line["opentelemetry"] for line in ddp.recorded.lines)


def test_launcher_and_ranks_say_nothing_more(ddp: Pair) -> None:
    """The launcher passes on what its ranks say, and how they end."""
    assert (ddp.recorded.exit_code, ddp.recorded.stderr) == (ddp.alone.exit_code, ddp.alone.stderr) == (0, "")


@pytest.mark.parametrize("rank", [0, 1])
def test_steps_have_their_phases_in_order(ddp: Pair, rank: int) -> None:
    """The steps of all ranks are laid side by side: they must be cut at the same places."""
    recording = ddp.recording_of("ddp", rank)

    assert [phases_of(step) for step in recording.steps] == [[*BATCH, *END]] * 4 + [[*BATCH, *BATCH, *END]] * 4
    assert [step.microbatches for step in recording.steps] == [1] * 4 + [2] * 4
    assert in_good_order(recording)


def test_ranks_and_launcher_share_a_run(ddp: Pair) -> None:
    """Nobody tells them which run they belong to: each works it out by itself."""
    identities = [recording.identity for recording in ddp.recorded.recordings]

    assert sorted((identity.role, identity.rank, identity.world_size) for identity in identities) == [
        ("agent", 0, 1),
        ("rank", 0, 2),
        ("rank", 1, 2),
    ]
    assert len({identity.run for identity in identities}) == 1
