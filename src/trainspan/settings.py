"""ONE table of every `TRAINSPAN_*` variable; what the OTel specification covers stays with its `OTEL_*` variable.

Reading never raises: a value that is not understood becomes a `Problem` and the default is used. The rank prints
problems as warnings; the command line refuses them (exit code 2), with the same words.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

PREFIX = "TRAINSPAN_"


@dataclass(frozen=True, slots=True)
class Settings:
    """The values in force. `None` means: not set, so the owner of the value decides."""

    enabled: bool
    relay: str
    dir: str | None
    recording_dir: str | None
    run_id: str | None
    attempt: int | None
    ring_marks: int | None
    spool_bytes: int
    exception_message: bool
    stall_s: int
    device_share: float | None
    checkpoint_path: str
    carbon_g_per_kwh: float | None
    session_tag: str | None
    perf_tag: str | None
    spans_allow: tuple[str, ...] | None
    spans_deny: tuple[str, ...] | None
    spans_every: int | None
    metrics_deny: tuple[str, ...] | None
    flops_per_token: float | None
    flops_per_sample: float | None
    peak_flops: float | None
    count_flops: bool
    launch_id: str | None
    launch_attempt: int | None
    rank_pid: int | None


class Problem(NamedTuple):
    """One variable that is not understood."""

    variable: str
    value: str
    accepted: str

    def __str__(self) -> str:
        return f"{self.variable}={self.value!r} is not understood: {self.accepted}"


class Variable(NamedTuple):
    """One row of the table. `parse` raises ValueError for a value outside `accepted`."""

    name: str
    default: str
    accepted: str
    meaning: str
    parse: Callable[[str], Any]

    @property
    def field(self) -> str:
        """Its name in `Settings`: TRAINSPAN_RUN_ID is `run_id`."""
        return self.name.removeprefix(PREFIX).lower()


_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def _relay(text: str) -> str:
    if text not in ("process", "thread", "off"):
        raise ValueError(text)
    return text


def _path_shown(text: str) -> str:
    if text not in ("hash", "plain", "omit"):
        raise ValueError(text)
    return text


def _directory(text: str) -> str:
    if not os.path.isabs(text):
        raise ValueError(text)
    return os.path.normpath(text)


def _identifier(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", text):
        raise ValueError(text)
    return text


def _tag(text: str) -> str:
    if len(text) > 256 or not text.isprintable():
        raise ValueError(text)
    return text


def _patterns(text: str) -> tuple[str, ...]:
    patterns = tuple(pattern.strip() for pattern in text.split(","))
    if not all(re.fullmatch(r"[A-Za-z0-9._*-]{1,128}", pattern) for pattern in patterns):
        raise ValueError(text)
    return patterns


def _at_least_one(text: str) -> int:
    number = _count(text)
    if number == 0:
        raise ValueError(text)
    return number


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(text)
    return int(text)


def _ring_marks(text: str) -> int:
    marks = _count(text)
    if marks & (marks - 1) or not 1 << 10 <= marks <= 1 << 26:
        raise ValueError(text)
    return marks


def _bytes(text: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text) or int(text) < 1 << 20:
        raise ValueError(text)
    return int(text)


def _intensity(text: str) -> float:
    grams = float(text)
    if not 0 <= grams <= 10_000:
        raise ValueError(text)
    return grams


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def _positive_number(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


VARIABLES = (
    Variable(
        "TRAINSPAN_ENABLED",
        "0",
        "use 1 or 0",
        "Record training. The one switch: without it nothing of trainspan is loaded.",
        _boolean,
    ),
    Variable(
        "TRAINSPAN_RELAY",
        "process",
        "use process, thread or off",
        "Who exports: a process per node; a thread of the rank, where no process may be started; "
        "or nobody, and `trainspan replay` delivers later.",
        _relay,
    ),
    Variable(
        "TRAINSPAN_DIR",
        "",
        "use an absolute path",
        "Where run folders are kept. Unset: `$XDG_STATE_HOME/trainspan`, else `~/.local/state/trainspan`.",
        _directory,
    ),
    Variable(
        "TRAINSPAN_RECORDING_DIR",
        "",
        "use an absolute path",
        "Where ranks record: a local disk, or a volume shared with the relay. "
        "Unset: memory of the host (`/dev/shm`), else the run folder.",
        _directory,
    ),
    Variable(
        "TRAINSPAN_RUN_ID",
        "",
        "use 1 to 128 letters, digits, '.', '_', ':' or '-', the first a letter or digit",
        "Identity of the run over all its restarts. Unset: taken from the launcher or scheduler.",
        _identifier,
    ),
    Variable(
        "TRAINSPAN_ATTEMPT",
        "",
        "use a number from 0",
        "Number of this incarnation of the run; torchrun's own restarts count on from it. "
        "Unset: from the restart counts of the scheduler and torchrun, or the next that the run folder does not know.",
        _count,
    ),
    Variable(
        "TRAINSPAN_RING_MARKS",
        "",
        "use a power of two from 1024 to 67108864",
        "Marks (16 bytes each) a rank keeps until they are read. Unset: 65536, or 4194304 when the relay is off.",
        _ring_marks,
    ),
    Variable(
        "TRAINSPAN_SPOOL_BYTES",
        "268435456",
        "use a number of bytes from 1048576",
        "Bound, per signal, of what is kept on disk while the endpoint does not take it.",
        _bytes,
    ),
    Variable(
        "TRAINSPAN_EXCEPTION_MESSAGE",
        "0",
        "use 1 or 0",
        "Export the message of an uncaught exception too. Off, because messages can hold data and secrets.",
        _boolean,
    ),
    Variable(
        "TRAINSPAN_STALL_S",
        "60",
        "use a number of seconds from 0",
        "After how long without any sign, and ten usual steps, a rank is said to be stalled, with its phase; 0: never.",
        _count,
    ),
    Variable(
        "TRAINSPAN_DEVICE_SHARE",
        "",
        "use a number from 0 to 1",
        "Share of the steps whose phases are timed on the device too; 0: none. "
        "Unset: the steps that have a trace whatever comes of them.",
        _share,
    ),
    Variable(
        "TRAINSPAN_CHECKPOINT_PATH",
        "hash",
        "use hash, plain or omit",
        "What is told of where a checkpoint lies: a hash of its path, the path itself, or nothing.",
        _path_shown,
    ),
    Variable(
        "TRAINSPAN_CARBON_G_PER_KWH",
        "",
        "use grams of CO2 equivalent per kWh, from 0 to 10000",
        "Carbon intensity of the electricity here, for `training.carbon`. Unset: no estimate.",
        _intensity,
    ),
    Variable(
        "TRAINSPAN_SESSION_TAG",
        "",
        "use up to 256 printable characters",
        "What is one logical run over all its restarts, as another system names it; on everything a rank sends.",
        _tag,
    ),
    Variable(
        "TRAINSPAN_PERF_TAG",
        "",
        "use up to 256 printable characters",
        "What is alike in performance: runs with the same tag can be compared; on everything a rank sends.",
        _tag,
    ),
    Variable(
        "TRAINSPAN_SPANS_ALLOW",
        "",
        "use names of spans with commas between them; `*` stands for any characters",
        "Export these spans and those that hold others (attempt, process, init, step, rank_step). Unset: all.",
        _patterns,
    ),
    Variable(
        "TRAINSPAN_SPANS_DENY",
        "",
        "use names of spans with commas between them; `*` stands for any characters",
        "Do not export these spans, unless they hold others. Metrics have their time all the same.",
        _patterns,
    ),
    Variable(
        "TRAINSPAN_SPANS_EVERY",
        "",
        "use a number from 1",
        "Trace every so many steps, in place of the first ones and a share; slow, straggling, failed and last ones "
        "besides. OTEL_TRACES_SAMPLER has precedence.",
        _at_least_one,
    ),
    Variable(
        "TRAINSPAN_METRICS_DENY",
        "",
        "use names of metrics with commas between them; `*` stands for any characters",
        "Do not export these metrics. What each of them costs is in docs/scale.md.",
        _patterns,
    ),
    Variable(
        "TRAINSPAN_FLOPS_PER_TOKEN",
        "",
        "use a number above 0",
        "FLOPs of the model for one token, forward and backward (6 times its parameters, for a dense transformer). "
        "With it, tokens become FLOPs.",
        _positive_number,
    ),
    Variable(
        "TRAINSPAN_FLOPS_PER_SAMPLE",
        "",
        "use a number above 0",
        "The same for one sample, where batches hold no tokens.",
        _positive_number,
    ),
    Variable(
        "TRAINSPAN_PEAK_FLOPS",
        "",
        "use a number above 0",
        "Peak FLOP/s of one device, at the precision in use; with FLOPs known, the MFU follows.",
        _positive_number,
    ),
    Variable(
        "TRAINSPAN_COUNT_FLOPS",
        "0",
        "use 1 or 0",
        "Have torch count the FLOPs of the model in one step, the third, which then takes a multiple of its time: "
        "those of the forward of modules and of the backward, without what activation checkpointing computes once more "
        "and without validation. Where something is compiled nothing is counted.",
        _boolean,
    ),
    Variable(
        "TRAINSPAN_LAUNCH_ID",
        "",
        "use 1 to 128 letters, digits, '.', '_', ':' or '-', the first a letter or digit",
        "Set by `trainspan run` and the torchrun agent for their workers: the run's identity when nobody gave one.",
        _identifier,
    ),
    Variable(
        "TRAINSPAN_LAUNCH_ATTEMPT",
        "",
        "use a number from 0",
        "Set by the torchrun agent for its workers: their attempt, which is the same on all nodes. "
        "TORCHELASTIC_RESTART_COUNT is not: each node counts its own.",
        _count,
    ),
    Variable(
        "TRAINSPAN_RANK_PID",
        "",
        "leave it unset",
        "Set by a recording process for what it starts: a process with another id is not a second rank.",
        _count,
    ),
)


def load(environ: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    """The settings in force, and every `TRAINSPAN_*` variable that is unknown or malformed.

    An empty value counts as unset, as the OTel specification has it for its own variables.
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for variable in VARIABLES:
        text = environ.get(variable.name, "").strip()
        try:
            values[variable.field] = variable.parse(text) if text else _default(variable)
        except ValueError:
            accepted = f"{variable.accepted}; going on with {variable.default or 'the default'}"
            problems.append(Problem(variable.name, text, accepted))
            values[variable.field] = _default(variable)
    known = {variable.name for variable in VARIABLES}
    problems += [
        Problem(name, environ[name], _suggestion(name, sorted(known)))
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known
    ]
    return Settings(**values), problems


def _default(variable: Variable) -> Any:
    return variable.parse(variable.default) if variable.default else None


def _suggestion(name: str, known: list[str]) -> str:
    # Imported only when there is something to complain about: it costs a rank's start-up 2 ms.
    from difflib import get_close_matches

    # Without the prefix: with it, any two of our names are alike.
    close = get_close_matches(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known], n=1)
    advice = f"did you mean {PREFIX}{close[0]}?" if close else f"known: {', '.join(known)}"
    return f"no such variable; {advice}"


def state_dir(settings: Settings, environ: Mapping[str, str]) -> str:
    """The folder that holds `runs/`: TRAINSPAN_DIR, else the XDG state directory of this user."""
    if settings.dir:
        return settings.dir
    xdg = environ.get("XDG_STATE_HOME", "")
    base = xdg if os.path.isabs(xdg) else os.path.expanduser("~/.local/state")
    return os.path.join(base, "trainspan")
