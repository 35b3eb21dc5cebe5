"""What `TRAINSPAN_*` variables mean, and what happens to values that mean nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainspan import settings
from trainspan.settings import VARIABLES, Problem, Settings

DEFAULTS = Settings(
    enabled=False,
    relay="process",
    dir=None,
    recording_dir=None,
    run_id=None,
    attempt=None,
    ring_marks=None,
    spool_bytes=256 << 20,
    exception_message=False,
    stall_s=60,
    device_share=None,
    checkpoint_path="hash",
    carbon_g_per_kwh=None,
    session_tag=None,
    perf_tag=None,
    spans_allow=None,
    spans_deny=None,
    metrics_deny=None,
    spans_every=None,
    flops_per_token=None,
    flops_per_sample=None,
    peak_flops=None,
    count_flops=False,
    launch_id=None,
    launch_attempt=None,
    rank_pid=None,
)

ACCEPTED: list[tuple[str, str, Any]] = [
    ("enabled", "1", True),
    ("enabled", "TRUE", True),
    ("enabled", "on", True),
    ("enabled", "0", False),
    ("enabled", "No", False),
    ("enabled", " 1 ", True),
    ("relay", "off", "off"),
    ("relay", "thread", "thread"),
    ("dir", "/var/lib/trainspan/", "/var/lib/trainspan"),
    ("recording_dir", "/mnt/a/../b", "/mnt/b"),
    ("run_id", "bert:2026-11.21_a", "bert:2026-11.21_a"),
    ("run_id", "x" * 128, "x" * 128),
    ("attempt", "0", 0),
    ("attempt", "17", 17),
    ("ring_marks", "1024", 1024),
    ("ring_marks", "67108864", 1 << 26),
    ("spool_bytes", "1048576", 1 << 20),
    ("exception_message", "yes", True),
    ("checkpoint_path", "plain", "plain"),
    ("checkpoint_path", "omit", "omit"),
    ("carbon_g_per_kwh", "380", 380.0),
    ("carbon_g_per_kwh", "12.5", 12.5),
    ("session_tag", "llama run 7", "llama run 7"),
    ("perf_tag", "7b/h100x8", "7b/h100x8"),
    ("spans_allow", "training.checkpoint.*, training.validation", ("training.checkpoint.*", "training.validation")),
    ("spans_deny", "training.other", ("training.other",)),
    ("metrics_deny", "training.ddp.*, hw.gpu.io", ("training.ddp.*", "hw.gpu.io")),
    ("spans_every", "50", 50),
    ("launch_id", "20261121-090000-0a1b2c3d", "20261121-090000-0a1b2c3d"),
]
REFUSED = [
    ("enabled", "2"),
    ("enabled", "enabled"),
    ("relay", "sidecar"),
    ("checkpoint_path", "yes"),
    ("carbon_g_per_kwh", "-1"),
    ("carbon_g_per_kwh", "nan"),
    ("carbon_g_per_kwh", "0.4 kg"),
    ("relay", "OFF"),
    ("session_tag", "x" * 257),
    ("perf_tag", "a\x1b[0m"),
    ("spans_allow", "training.*,,x"),
    ("spans_deny", "training forward"),
    ("metrics_deny", "training.ddp;hw"),
    ("spans_every", "0"),
    ("spans_every", "-3"),
    ("dir", "runs"),
    ("dir", "~/runs"),
    ("recording_dir", "./here"),
    ("run_id", "../../x"),
    ("run_id", ".hidden"),
    ("run_id", "-rf"),
    ("run_id", "a/b"),
    ("run_id", "two words"),
    ("run_id", "x" * 129),
    ("run_id", "läufer"),
    ("attempt", "-1"),
    ("attempt", "first"),
    ("attempt", "1.0"),
    ("attempt", "1" * 5000),
    ("ring_marks", "1025"),
    ("ring_marks", "512"),
    ("ring_marks", "134217728"),
    ("ring_marks", "0"),
    ("ring_marks", "64k"),
    ("spool_bytes", "1048575"),
    ("spool_bytes", "1GB"),
    ("spool_bytes", "9" * 16),
    ("exception_message", "maybe"),
    ("launch_id", "a\nb"),
    ("rank_pid", "self"),
]


def variable_of(field: str) -> str:
    """The name of the variable behind a field."""
    return next(variable.name for variable in VARIABLES if variable.field == field)


def test_nothing_set_is_all_defaults() -> None:
    """Most users set one variable: the rest must be right without them."""
    found, problems = settings.load({"PATH": "/usr/bin", "OTEL_SERVICE_NAME": "x"})

    assert found == DEFAULTS
    assert problems == []


@pytest.mark.parametrize("field", [variable.field for variable in VARIABLES])
@pytest.mark.parametrize("empty", ["", " ", "\t"])
def test_empty_counts_as_unset(field: str, empty: str) -> None:
    """`export TRAINSPAN_DIR=` switches a variable off, as the OTel specification has it for its own."""
    found, problems = settings.load({variable_of(field): empty})

    assert found == DEFAULTS
    assert problems == []


@pytest.mark.parametrize(("field", "text", "value"), ACCEPTED)
def test_value_is_understood(field: str, text: str, value: object) -> None:
    """What the reference page accepts is accepted."""
    found, problems = settings.load({variable_of(field): text})

    assert getattr(found, field) == value
    assert problems == []


@pytest.mark.parametrize(("field", "text"), REFUSED)
def test_malformed_value_is_named_and_the_default_used(field: str, text: str) -> None:
    """Training must go on, and its owner must see which of their words was not understood."""
    found, problems = settings.load({variable_of(field): text})

    assert found == DEFAULTS
    assert [(problem.variable, problem.value) for problem in problems] == [(variable_of(field), text)]


def test_problem_says_variable_value_what_is_accepted_and_what_follows() -> None:
    """One line has to be enough to mend it."""
    _, problems = settings.load({"TRAINSPAN_RELAY": "sidecar"})

    text = str(problems[0])

    assert text == ("TRAINSPAN_RELAY='sidecar' is not understood: use process, thread or off; going on with process")


def test_problem_without_a_default_says_so() -> None:
    """`going on with None` would be our word, not the user's."""
    _, problems = settings.load({"TRAINSPAN_ATTEMPT": "first"})

    text = str(problems[0])

    assert text == "TRAINSPAN_ATTEMPT='first' is not understood: use a number from 0; going on with the default"


def test_unknown_variable_is_named_with_the_closest_one() -> None:
    """A misspelt variable does nothing, silently, until somebody wonders why."""
    _, problems = settings.load({"TRAINSPAN_ENABLE": "1", "TRAINSPAN_RECORDINGS_DIR": "/x"})

    advice = {problem.variable: problem.accepted for problem in problems}

    assert advice == {
        "TRAINSPAN_ENABLE": "no such variable; did you mean TRAINSPAN_ENABLED?",
        "TRAINSPAN_RECORDINGS_DIR": "no such variable; did you mean TRAINSPAN_RECORDING_DIR?",
    }


def test_unknown_variable_like_no_other_is_answered_with_all() -> None:
    """Without a guess the list is what helps."""
    _, problems = settings.load({"TRAINSPAN_QUUX": "1"})

    assert problems[0].accepted.startswith("no such variable; known: TRAINSPAN_ATTEMPT, ")
    assert all(variable.name in problems[0].accepted for variable in VARIABLES)


def test_each_problem_is_told_and_the_good_values_hold() -> None:
    """One bad value must not cost the others."""
    environ = {"TRAINSPAN_ENABLED": "1", "TRAINSPAN_RELAY": "x", "TRAINSPAN_ATTEMPT": "y", "TRAINSPAN_Z": "z"}

    found, problems = settings.load(environ)

    assert found.enabled
    assert [problem.variable for problem in problems] == ["TRAINSPAN_RELAY", "TRAINSPAN_ATTEMPT", "TRAINSPAN_Z"]


@given(st.dictionaries(st.sampled_from([variable.name for variable in VARIABLES]), st.text()))
def test_no_value_raises(environ: dict[str, str]) -> None:
    """This runs inside somebody's training: whatever the environment holds, it must end."""
    found, problems = settings.load(environ)

    assert isinstance(found, Settings)
    assert all(isinstance(problem, Problem) for problem in problems)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"TRAINSPAN_DIR": "/data/runs", "XDG_STATE_HOME": "/xdg", "HOME": "/users/a"}, "/data/runs"),
        ({"XDG_STATE_HOME": "/xdg"}, "/xdg/trainspan"),
    ],
)
def test_state_directory_is_the_one_asked_for(environ: dict[str, str], folder: str) -> None:
    """The rank, the relay and the report must come to the same place."""
    found, _ = settings.load(environ)

    assert settings.state_dir(found, environ) == folder


@pytest.mark.parametrize("environ", [{}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative/path"}])
def test_state_directory_without_xdg_is_below_the_home(environ: dict[str, str]) -> None:
    """The XDG specification has relative paths ignored."""
    found, _ = settings.load(environ)

    folder = settings.state_dir(found, environ)

    assert folder.endswith("/.local/state/trainspan")
    assert folder.startswith("/")
