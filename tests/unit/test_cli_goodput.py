"""`trainspan goodput`: what it accepts, what it refuses, and what it says, on ledgers and logs made by hand."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.goodput_facts import S, activity, begun, ended, steps
from trainspan.cli.goodput import length_ns, stretch_ns, time_ns
from trainspan.cli.main import main
from trainspan.names import STATES
from trainspan.relay.goodput.facts import Fact, Loaded, Saved
from trainspan.relay.goodput.ledger import LedgerWriter

KEYS = {
    "schema",
    "version",
    "source",
    "goodput",
    "total_s",
    "productive_s",
    "badput_s",
    "unaccounted_s",
    "excluded_s",
    "overlap_s",
    "disruptions",
    "planned_stops",
    "planned_stop_s",
    "steps",
    "steps_lost",
    "last_step",
    "began_unix_s",
    "ended_unix_s",
    "window",
    "unread",
    "recoveries",
    "recovery_s",
    "pace",
    "ettr",
    "mfu",
    "projection",
    "rolling",
}

ENTRIES: list[dict[str, Any]] = [
    {"job_start_time": 1000.0},
    {"step_count": 0, "step_start_time": 1010.0},
    {"step_count": 1, "step_start_time": 1020.0},
    {"step_count": 2, "step_start_time": 1030.0},
    {"job_end_time": 1040.0},
]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory that the command looks in."""
    monkeypatch.setenv("TRAINSPAN_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def leave_ledger(state: Path, *facts: Fact, run: str = "demo") -> Path:
    """What a relay leaves of a run; its folder."""
    folder = state / "runs" / run
    (folder / "ledger").mkdir(parents=True)
    writer = LedgerWriter(folder / "ledger", "n0", 1)
    writer.append(facts)
    writer.close()
    return folder


def one_restart() -> list[Fact]:
    """100 s: 10 s of init, 3 steps, a kill, 20 s until the next life, 10 s of init; steps 2 and 3, an orderly end."""
    return [
        begun(1000),
        activity("init", 1000, 1010),
        *steps(0, [1010, 1020, 1030, 1040]),
        ended(1050),
        begun(1070, attempt=1),
        activity("init", 1070, 1080, attempt=1),
        *steps(2, [1080, 1090, 1100], attempt=1),
        ended(1100, attempt=1, orderly=True),
    ]


def write_log(path: Path, entries: list[dict[str, Any]], job: str = "job") -> Path:
    """A log of ml-goodput-measurement."""
    path.write_text("".join(json.dumps({"job_name": job} | entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def said_json(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON that `trainspan goodput WORDS --json` prints."""
    code = main(["goodput", *words, "--json"])
    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    said: dict[str, Any] = json.loads(shown.out)
    return said


def test_json_has_its_keys_and_adds_up(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read it: the keys stay, and the states are the whole of the time."""
    leave_ledger(state, *one_restart())

    said = said_json(capsys=capsys)

    assert set(said) == KEYS
    assert (said["schema"], said["version"], said["source"]) == ("trainspan.goodput", 1, "demo")
    assert said["total_s"] == 100 == said["productive_s"] + sum(said["badput_s"].values())
    assert said["badput_s"] == {"init": 20.0, "lost_work": 20.0, "restart": 20.0}
    assert (said["goodput"], said["disruptions"], said["last_step"], said["steps_lost"]) == (0.4, 1, 3, 1)
    assert said["recovery_s"] == 30.0
    assert said["recoveries"][0]["resumed_step"] == 2


def test_window_exclusion_and_axis_reach_the_engine(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that changes nothing is worse than none."""
    leave_ledger(state, *one_restart())
    window = ["--since", "1010", "--until", "1100", "--exclude", "1040/1080"]

    said = said_json("demo", *window, "--window", "20s", "--by", "attempt", capsys=capsys)

    assert said["window"] == {"since": 1010.0, "until": 1100.0, "exclude": [[1040.0, 1080.0]]}
    assert (said["total_s"], said["excluded_s"]) == (50.0, 40.0)
    assert [(part["length_s"], part["goodput"]) for part in said["rolling"]] == [(20.0, 1.0)]
    assert {attempt: part["total_s"] for attempt, part in said["by"]["attempt"].items()} == {"0": 30.0, "1": 20.0}


def test_waterfall_fits_80_columns_without_color(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it goes is a log file as often as a terminal."""
    leave_ledger(state, *one_restart())

    main(["goodput", "demo", "--by", "rank", "--window", "1h"])

    shown = capsys.readouterr().out
    rows = [line.rstrip() for line in shown.splitlines()]
    assert "\x1b" not in shown
    assert max(map(len, rows)) <= 80
    assert rows[0] == "demo: goodput 40.0 %"
    first = rows.index("Where the time went")
    assert [row.split()[0] for row in rows[first + 1 : first + 6]] == [
        "total",
        "init",
        "lost_work",
        "restart",
        "productive",
    ]
    bars = [(row.index("█"), len(row)) for row in rows[first + 1 : first + 6]]
    assert [start for start, _ in bars[1:4]] == [end for _, end in bars[2:4]] + [bars[4][1]]


def long_run() -> list[Fact]:
    """Thirteen hours in ten attempts, with numbers as long as they get and a name that is longer than its column."""
    facts: list[Fact] = []
    for attempt in range(10):
        at = attempt * 5000
        facts += [begun(at, attempt=attempt), activity("init", at, at + 700, attempt=attempt)]
        facts += [activity("custom.copy of all samples to the registry", at + 800, at + 830, attempt=attempt)]
        facts += steps(attempt * 99, range(at + 700, at + 4700, 40), attempt=attempt, wait=5.0)
        facts += [activity("checkpoint_save", at + 4650, at + 4654, attempt=attempt)]
        facts.append(ended(at + 4660 + (attempt != 5), attempt=attempt, orderly=attempt == 5))
    return facts


def shown_lines(*words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the command prints."""
    assert main(["goodput", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [80, 120, 300])
def test_numbers_are_never_cut(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Half a number is a wrong number; a name may lose its end."""
    monkeypatch.setenv("COLUMNS", str(columns))
    leave_ledger(state, *long_run())

    rows = shown_lines("demo", "--by", "attempt", "--window", "24h", "--window", "90s", capsys=capsys)

    cut = [row for row in rows if "…" in row]
    assert max(map(len, rows)) <= min(columns, 120)
    assert [row.split("…")[0].strip() for row in cut] == ["custom.copy of all sa"]
    total = next(row for row in rows if row.startswith("  total"))
    assert total.split("  ")[-2:] == ["100.0 %", "█" * (min(columns, 120) - len(total.rstrip("█")))]
    assert len(total) == min(columns, 120)
    assert any(row.startswith("  24 h ") for row in rows)
    assert any(row.startswith("  90 s ") for row in rows)


def test_small_cause_is_no_zero_and_no_bar(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Zero means that it was measured as zero, and a bar of a whole cell that it took a cell's share."""
    leave_ledger(state, *long_run())

    rows = shown_lines("demo", capsys=capsys)

    lost = next(row.split() for row in rows if row.startswith("  lost_work"))
    assert lost[1:] == ["9.00", "s", "<0.1", "%", "▏"]


def test_recoveries_left_out_are_said(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table that shows eight of nine and does not say so is a wrong table."""
    leave_ledger(state, *long_run())

    rows = shown_lines("demo", capsys=capsys)

    title = rows.index("Recoveries, the newest 8 of 9")
    shown = [row.split() for row in rows[title + 2 : title + 10]]
    assert [row[0] for row in shown] == [str(attempt) for attempt in range(2, 10)]
    assert [row[1] for row in shown].count("planned") == 1


def test_terminal_without_unicode_gets_an_answer(state: Path) -> None:
    """A traceback about a micro sign helps nobody."""
    leave_ledger(state, *long_run())
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}

    done = subprocess.run(
        [sys.executable, "-m", "trainspan", "goodput"], env=environ, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "####" in done.stdout


def launched_again(*, at: int, first: int) -> list[Fact]:
    """A launch of two ranks with nothing but the run's id: attempt 0, steps from 0, `first` of the run's loaded."""
    facts: list[Fact] = []
    for rank in range(2):
        facts += [begun(at + rank, rank=rank, in_run=False), activity("init", at + rank, at + 10, rank=rank)]
        facts += [Loaded(0, rank, (at + 9) * S, first)] if first else []
        facts += steps(0, range(at + 10, at + 60, 10), rank=rank)
        facts.append(ended(at + 60, rank=rank, orderly=True))
    return facts


@pytest.mark.parametrize("in_one_file", [False, True])
def test_run_that_was_launched_again_by_its_id_has_two_attempts(
    state: Path, capsys: pytest.CaptureFixture[str], in_one_file: bool
) -> None:
    """A planned stop and a later resume, by hand: no step was done twice, and the night between is no mystery."""
    friday, monday = launched_again(at=1000, first=0), launched_again(at=9000, first=4)
    folder = leave_ledger(state, *friday, *(monday if in_one_file else []))
    if not in_one_file:
        writer = LedgerWriter(folder / "ledger", "n0", 2)
        writer.append(monday)
        writer.close()

    said = said_json("demo", "--by", "attempt", capsys=capsys)

    assert (said["steps"], said["steps_lost"], said["last_step"]) == (8, 0, 7)
    assert (said["disruptions"], said["planned_stops"], said["planned_stop_s"]) == (0, 1, 7940.0)
    assert said["badput_s"] == {"init": 20.0, "restart": 7940.0, "shutdown": 20.0}
    assert sorted(said["by"]["attempt"]) == ["0", "1"]
    assert said["unread"]["lines"] == 0


def test_attempts_that_overlap_are_said(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A clock that was set back, or a process that would not die: what is left out is left out aloud."""
    leave_ledger(state, *one_restart(), begun(1085, attempt=2), *steps(2, [1090, 1110], attempt=2))

    rows = shown_lines("demo", capsys=capsys)

    assert "15.0 s recorded after a later attempt had begun are left out (a clock set back?)" in rows
    assert said_json("demo", capsys=capsys)["overlap_s"] == 15.0


def test_projection_says_what_it_is_made_from(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Advice without its ground is not followed."""
    saves = [Saved(a, 0, (a * 5000 + at) * S, a * 99 + at // 40) for a in range(10) for at in (1500, 4654)]
    leave_ledger(state, *long_run(), *saves)

    rows = shown_lines("demo", capsys=capsys)

    title = rows.index("Checkpoints")
    assert "would lose" in rows[title + 1]
    assert "from 8 failures, saves of 2.00 s and recoveries of" in rows[title + 2]


def test_torn_ledger_line_is_counted(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A power cut leaves half a line; the answer says that something is missing."""
    folder = leave_ledger(state, *one_restart())
    (folder / "ledger" / "n0-2-1-000000.jsonl").write_bytes(b'["step",0,0,3,10')

    said = said_json(capsys=capsys)

    assert said["unread"] == {"lines": 1, "files": ["n0-2-1-000000.jsonl"]}
    assert said["total_s"] == 100


def test_log_of_the_peer_is_answered(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A team compares before it moves, with the log it already has."""
    log = write_log(state / "log.jsonl", ENTRIES)
    log.write_text(log.read_text(encoding="utf-8") + "torn{\n", encoding="utf-8")

    said = said_json(str(log), "--input", "ml-goodput", capsys=capsys)

    assert set(said) == KEYS | {"in_their_words"}
    assert (said["total_s"], said["productive_s"], said["last_step"]) == (40.0, 30.0, 2)
    assert said["unread"] == {"lines": 1, "files": ["log.jsonl"]}


def test_cache_file_of_the_peer_is_answered(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is on everybody's disk: floats for steps, blank lines, a byte order mark where an editor has left one."""
    lines = [json.dumps({"job_name": "job"} | entry) for entry in ENTRIES]
    text = "\ufeff" + "\n\n".join(lines).replace('"step_count": 1', '"step_count": 1.0') + "\n"
    (state / "job_timeline.jsonl").write_text(text, encoding="utf-8")

    said = said_json(str(state / "job_timeline.jsonl"), "--input", "ml-goodput", capsys=capsys)

    assert (said["steps"], said["last_step"], said["unread"]["lines"]) == (3, 2, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.jsonl", "--input", "ml-goodput"], "nowhere.jsonl cannot be read: No such file or directory"),
        (
            ["{state}/foreign", "--input", "ml-goodput"],
            "{state}/foreign is no log of ml-goodput-measurement: of 2 lines",
        ),
        (["{state}/two", "--input", "ml-goodput"], "{state}/two: the log holds 2 jobs (a, b); say which one (--job)"),
        (["empty"], "{state}/runs/empty holds no ledger: no rank has been seen yet"),
        (["absent"], "no run 'absent' in {state}/runs"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(
    words: list[str], said: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback: the message says what was found instead."""
    (state / "runs" / "empty").mkdir(parents=True)
    (state / "foreign").write_bytes(b"\xff\x00 no json\n[1, 2]\n")
    write_log(state / "two", ENTRIES, "a")
    with (state / "two").open("a", encoding="utf-8") as file:
        file.write('{"job_name": "b", "job_start_time": 5.0}\n')

    code = main(["goodput", *(word.format(state=state) for word in words)])

    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert shown.err.startswith(f"trainspan goodput: {said.format(state=state)}")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "value", "accepted"),
    [
        (["--since", "yesterday"], "'yesterday'", "ISO 8601"),
        (["--until", "nan"], "'nan'", "Unix seconds"),
        (["--until", "1e12"], "'1e12'", "Unix seconds"),
        (["--window", "1y"], "'1y'", "1h"),
        (["--window", "0"], "'0'", "1h"),
        (["--exclude", "5"], "'5'", "A/B"),
        (["--exclude", "9/5"], "'9/5'", "A before B"),
        (["--by", "host"], "'host'", "node"),
        (["--since", "10", "--until", "5"], "10", "--until 5"),
        (["--job", "a"], "--job", "--input ml-goodput"),
        (["--input", "ml-goodput"], "--input ml-goodput", "FILE"),
        (["--input", "wandb"], "'wandb'", "ml-goodput"),
        (["--picture", "goodput.png"], "goodput.png", ".svg"),
        (["--since", "2026-11-21 25:00"], "'2026-11-21 25:00'", "ISO 8601"),
        (["--exclude", "5/yesterday"], "'yesterday'", "ISO 8601"),
        (["--since", "20261131"], "'20261131'", "ISO 8601"),
    ],
)
def test_what_is_not_understood_is_named_with_what_would_be(
    words: list[str], value: str, accepted: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error is answered with the way out, and exit code 2."""
    leave_ledger(state, *one_restart())

    code = main(["goodput", *words])

    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert value in shown.err
    assert accepted in shown.err


def test_times_in_every_form_are_the_same() -> None:
    """People paste what they see: a log's ISO time, a shell's seconds."""
    told = ["2026-11-21T08:00:00Z", "2026-11-21T09:00:00+01:00", "1795248000", "1795248000.0"]

    times = {time_ns(text) for text in told}

    assert times == {1_795_248_000 * S}
    assert stretch_ns("5/2026-11-21T08:00:00Z") == (5 * S, 1_795_248_000 * S)
    assert [length_ns(text) for text in ("90", "1.5s", "15m", "1h", "7d")] == [
        90 * S,
        3 * S // 2,
        900 * S,
        3600 * S,
        604_800 * S,
    ]


def test_eight_digits_are_a_date() -> None:
    """As seconds they would lie before 1974, and the whole run would be the answer, without a word."""
    dates = [time_ns(text) for text in ("20261122", "2026-11-22")]

    assert dates[0] == dates[1] == int(datetime(2026, 11, 22).astimezone().timestamp()) * S
    assert stretch_ns("20261122/20261123") == (dates[0], time_ns("2026-11-23"))
    assert time_ns("20261122.0") == 20_261_122 * S


def test_window_that_was_asked_is_shown(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How a time was read shows nowhere else: the extent below it is that of the run."""
    leave_ledger(state, *one_restart())

    whole = shown_lines(capsys=capsys)
    since = shown_lines("--since", "1010", capsys=capsys)
    cut = shown_lines("--since", "0", "--until", "1040", "--exclude", "1020/1030", "--exclude", "5/6", capsys=capsys)
    until = shown_lines("--until", "1040", capsys=capsys)

    assert not any(line.startswith("asked") for line in whole)
    assert since[1:3] == ["asked: from 1970-01-01 00:16:50Z", "1970-01-01 00:16:50Z to 1970-01-01 00:18:20Z"]
    assert cut[1:4] == [
        "asked: from 1970-01-01 00:00:00Z until 1970-01-01 00:17:20Z",
        "  without 1970-01-01 00:17:00Z to 1970-01-01 00:17:10Z",
        "  without 1970-01-01 00:00:05Z to 1970-01-01 00:00:06Z",
    ]
    assert until[1] == "asked: until 1970-01-01 00:17:20Z"


def test_help_explains_every_state(capsys: pytest.CaptureFixture[str]) -> None:
    """The words of the answer are in the command that gives it."""
    main(["goodput", "--help"])

    said = capsys.readouterr().out
    assert [state for state in STATES if f"  {state} " not in said] == []
    assert max(map(len, said.splitlines())) <= 90


def test_picture_scalars_and_mfu_are_made_when_asked(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A picture goes into the report of the week, the scalars beside the loss."""
    leave_ledger(state, *one_restart())
    out = state / "out"
    out.mkdir()

    files = ("--picture", str(out / "goodput.svg"), "--tensorboard", str(out / "logs"))
    said = said_json(*files, "--flops-per-step", "2e12", "--peak-flops", "1e12", capsys=capsys)

    assert (out / "goodput.svg").read_text(encoding="utf-8").startswith("<svg ")
    assert len(list((out / "logs").iterdir())) == 1
    assert said["mfu"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--flops-per-step", "1e12"], "the MFU needs both --flops-per-step and --peak-flops"),
        (["--flops-per-step", "many", "--peak-flops", "1"], "'many' is no number above zero"),
        (["--peak-flops", "-1", "--flops-per-step", "1"], "'-1' is no number above zero"),
    ],
)
def test_half_an_mfu_is_refused(
    state: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    """A number that was meant otherwise must not become one that is believed."""
    leave_ledger(state, *one_restart())

    code = main(["goodput", *words])

    assert code == 2
    assert complaint in capsys.readouterr().err


def test_picture_that_cannot_be_written_says_so(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is missing is the usual case."""
    leave_ledger(state, *one_restart())

    code = main(["goodput", "--picture", str(state / "missing" / "goodput.svg")])

    assert code == 1
    assert "goodput.svg cannot be written: No such file or directory" in capsys.readouterr().err


def test_large_ledger_is_seen_being_read(state: Path) -> None:
    """A minute of silence looks like a hang; what reads the answer must get nothing but the answer."""
    folder = leave_ledger(state, begun(0))
    LedgerWriter(folder / "ledger", "n0", 2).append(steps(0, range(30_000)))
    terminal, stderr = os.openpty()
    command = [sys.executable, "-m", "trainspan", "goodput", str(folder), "--json"]

    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=True)

    os.close(stderr)
    assert json.loads(done.stdout)["steps"] == 29_999
    assert b"reading the ledger" in os.read(terminal, 1 << 16)
    os.close(terminal)
