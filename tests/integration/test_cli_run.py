"""`trainspan run` around real processes: exit codes, signals, PID 1, the wait for the relay."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainspan.cli.child import signals_held, wait_until
from trainspan.testing.otlp_sink import OtlpSink, Protocol

RUN = [sys.executable, "-m", "trainspan", "run"]

# Says that it is ready, counts the signals it gets until half a second brings none, and exits with the count.
# Waited for, not handled: a handler that is busy would take two for one.
COUNTS_SIGNALS = """
import signal, sys
wanted = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print("ready", flush=True)
got = []
while (one := signal.sigtimedwait(wanted, 0.5 if got else 60)) is not None:
    got.append(one.si_signo)
print("got", *got, flush=True)
sys.exit(100 + len(got))
"""

# A training script as anybody writes it.
TRAINS = """
import sys, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
sys.exit(5)
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory of the test's own."""
    return tmp_path / "state"


@pytest.fixture
def environ(state: Path) -> dict[str, str]:
    """The environment of a user."""
    return {**os.environ, "TRAINSPAN_DIR": str(state)}


def run(words: list[str], environ: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """`trainspan run` with these words, to its end."""
    return subprocess.run([*RUN, *words], env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["no-such-command"], 127),
        (["/"], 126),
    ],
)
@pytest.mark.parametrize("separator", [["--"], []])
def test_exit_code_is_the_commands(
    command: list[str], code: int, separator: list[str], environ: dict[str, str]
) -> None:
    """Schedulers decide on it whether a job is started again."""
    ran = run([*separator, *command], environ)

    assert ran.returncode == code
    assert ran.stdout == ""


@pytest.mark.parametrize("words", [[], ["--"], ["--run-id", "x", "--"]])
def test_missing_command_is_bad_usage(words: list[str], environ: dict[str, str]) -> None:
    """An empty variable in a job script must be told from a command that failed."""
    ran = run(words, environ)

    assert ran.returncode == 2
    assert ran.stderr == "trainspan run: no command given; use: trainspan run -- python train.py\n"


def test_command_that_cannot_be_started_is_named(environ: dict[str, str]) -> None:
    """The typing error is in the message."""
    ran = run(["--", "pythn", "train.py"], environ)

    assert ran.stderr == "trainspan run: 'pythn' cannot be started: No such file or directory\n"


def test_options_of_the_command_are_not_ours(environ: dict[str, str]) -> None:
    """`--dir` and a second `--` behind the command belong to the command."""
    ran = run(["--", "echo", "--dir", "x", "--", "--json"], environ)

    assert ran.stdout == "--dir x -- --json\n"


def test_command_sees_recording_switched_on(environ: dict[str, str], state: Path) -> None:
    """What the command inherits is all that makes its ranks record, and one run of them."""
    ran = run(["--run-id", "llama-7", "--", "sh", "-c", "env | grep ^TRAINSPAN_ | sort"], environ)

    names = dict(line.split("=", 1) for line in ran.stdout.splitlines())
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", names.pop("TRAINSPAN_LAUNCH_ID"))
    assert names == {"TRAINSPAN_DIR": str(state), "TRAINSPAN_ENABLED": "1", "TRAINSPAN_RUN_ID": "llama-7"}


def test_relative_directory_is_made_absolute(environ: dict[str, str]) -> None:
    """The command may change its working directory before it records."""
    ran = run(["--dir", "runs", "--", "sh", "-c", "echo $TRAINSPAN_DIR"], environ)

    assert ran.stdout == f"{Path.cwd() / 'runs'}\n"


def test_nested_run_is_one_run(environ: dict[str, str]) -> None:
    """A job script that uses it, started by a wrapper that uses it, still makes one run and says so once."""
    inner = [*RUN, "--", "sh", "-c", "echo $TRAINSPAN_LAUNCH_ID; exit 9"]

    ran = run(["--", "sh", "-c", 'echo $TRAINSPAN_LAUNCH_ID; exec "$@"', "sh", *inner], environ)

    outer_id, inner_id = ran.stdout.splitlines()
    assert ran.returncode == 9
    assert outer_id == inner_id
    assert ran.stderr.count("nothing was recorded") == 1


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_signal_goes_on_to_the_command(number: str, environ: dict[str, str]) -> None:
    """Slurm warns with SIGUSR1 and stops with SIGTERM; the training saves its checkpoint on either."""
    with subprocess.Popen(
        [*RUN, "--", sys.executable, "-c", COUNTS_SIGNALS], env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        process.send_signal(signal.Signals[number])
        said = process.stdout.read()

    assert said == f"got {signal.Signals[number].value}\n"
    assert process.returncode == 101


def test_interrupt_from_the_terminal_is_left_to_the_terminal(environ: dict[str, str]) -> None:
    """Ctrl-C reaches the whole foreground group, and torchrun takes a second one as "stop without cleaning up".

    The kernel merges two equal signals that come at once, so the command leaves the group: what it gets is ours.
    """
    child, terminal = pty.fork()
    if child == 0:
        apart = f"import os; os.setpgrp()\n{COUNTS_SIGNALS}"
        os.execve(sys.executable, [*RUN, "--", sys.executable, "-c", apart], environ)  # noqa: S606  # its point

    read_until(terminal, "ready\r\n")
    os.write(terminal, b"\x03")
    read_until(terminal, r"\^C")
    os.kill(child, signal.SIGTERM)
    said = read_until(terminal, "got.*\r\n")
    _, status = os.waitpid(child, 0)
    os.close(terminal)

    assert f"got {signal.SIGTERM.value}\r\n" in said
    assert os.waitstatus_to_exitcode(status) == 101


def read_until(terminal: int, pattern: str) -> str:
    """What a terminal shows next, up to what `pattern` matches."""
    said = ""
    while not re.search(pattern, said):
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, said
        said += os.read(terminal, 4096).decode()
    return said


def test_command_starts_with_signals_as_a_shell_leaves_them(environ: dict[str, str]) -> None:
    """A blocked SIGTERM would make the command unstoppable, an ignored SIGPIPE would let `| head` run for ever."""
    ran = run(["--", "grep", "-E", "SigBlk|SigIgn", "/proc/self/status"], environ)

    masks = {name: int(mask, 16) for name, mask in (line.split(":\t") for line in ran.stdout.splitlines())}
    assert masks["SigBlk"] == 0
    assert masks["SigIgn"] & 1 << (signal.SIGPIPE - 1) == 0


def test_exit_code_survives_a_parent_that_ignores_its_children(environ: dict[str, str]) -> None:
    """Some supervisors start their jobs with SIGCHLD ignored; the kernel then throws exit codes away."""
    ran = subprocess.run(
        [*RUN, "--", "sh", "-c", "exit 7"],
        env=environ,
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),  # one thread runs here
    )

    assert ran.returncode == 7


def why_no_container() -> str | None:
    """Why no process here can be made the first of a PID namespace."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    tried = subprocess.run(["unshare", "--fork", "--pid", "--mount-proc", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "this user may not make a PID namespace"


def test_first_process_of_a_container_forwards_signals_and_reaps_orphans(environ: dict[str, str]) -> None:
    """The kernel discards what a first process has no handler for, and leaves every orphan with it."""
    why_not = why_no_container()
    if why_not:
        pytest.skip(f"{why_not}; would have shown that signals come through and orphans are reaped as PID 1")
    # The orphan's parent is gone at once; what is left of it a second later is our doing.
    script = (
        "(sleep 0.1 &) ; trap 'exit 42' TERM; sleep 1; "
        "for p in /proc/[0-9]*; do grep -s '^State:.*zombie' $p/status; done; echo ready $$ of $PPID; "
        "sleep 60 & wait"
    )
    namespace = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
    with subprocess.Popen(
        [*namespace, *RUN, "--", "sh", "-c", script], env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()

        first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii"))
        os.kill(first, signal.SIGTERM)
        code = process.wait(60)

    assert re.fullmatch(r"ready \d+ of 1\n", ready)
    assert code == 42


def test_relay_that_still_exports_is_waited_for(environ: dict[str, str], state: Path) -> None:
    """As the first process of a container our end is the end of everything, the last export included."""
    host = os.uname().nodename
    relay = (
        "import fcntl, os, sys, time; lock = open('relay.lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX); "
        "print(flush=True); os.close(1); time.sleep(2); open('left', 'w').close()"
    )
    recordings = state / "runs" / "llama-7" / "recordings" / host
    script = f'mkdir -p {recordings} && cd {recordings} && {{ {sys.executable} -c "{relay}" & }} | read ready; exit 6'

    ran = run(["--run-id", "llama-7", "--", "sh", "-c", script], environ)

    assert ran.returncode == 6
    assert (recordings / "left").exists()
    assert ran.stderr.splitlines() == [
        "trainspan: the relay is exporting the last of it ...",
        f"trainspan: recorded in {state}/runs/llama-7; see it with: trainspan report {state}/runs/llama-7",
    ]


def test_wait_is_bounded_and_explains_itself_once() -> None:
    """A relay that hangs on a dead collector must not hold up the end of the job."""
    said: list[str] = []

    with signals_held():
        began = time.monotonic()
        came = wait_until(lambda: False, 0.3, 0.1, lambda: said.append("waiting"))
        took_s = time.monotonic() - began

    assert not came
    assert said == ["waiting"]
    assert took_s >= 0.3


def test_signal_ends_the_wait() -> None:
    """Who presses Ctrl-C a second time does not want to wait for telemetry."""
    with signals_held():
        signal.raise_signal(signal.SIGINT)  # to this thread: sent to the process, another one's mask may let it in

        came = wait_until(lambda: False, 60, 60, lambda: None)

    assert not came


def test_training_is_recorded_and_reported(environ: dict[str, str], state: Path) -> None:
    """The whole way, as a user goes it: run a script, read the line, ask for the report."""
    ran = run(["--", sys.executable, "-c", TRAINS], environ)

    found = re.search(r"see it with: (trainspan report (\S+))$", ran.stderr, re.MULTILINE)
    assert ran.returncode == 5
    assert found, ran.stderr
    asked = [sys.executable, "-m", *found[1].split(), "--json"]
    report = json.loads(subprocess.run(asked, env=environ, capture_output=True, check=True).stdout)
    assert Path(report["folder"]).parent == state / "runs"
    assert (report["state"], report["steps"], report["world_size"]) == ("failed", 20, 1)
    assert report["ranks"][0]["ended_cause"] == "exit code 5"
    assert {"forward", "backward", "optimizer"} <= {phase["phase"] for phase in report["ranks"][0]["phases"]}


@pytest.mark.parametrize(("protocol", "why"), [("http/protobuf", "Connection refused"), ("grpc", "UNAVAILABLE")])
def test_what_no_endpoint_took_is_said_with_what_delivers_it(
    protocol: Protocol, why: str, environ: dict[str, str], state: Path
) -> None:
    """A short run ends before the first export has failed for good; without a word it would look like success."""
    with OtlpSink(protocol) as gone:
        port, endpoint, more = gone.port, gone.endpoint, gone.environ

    ran = run(["--run-id", "llama-7", "--", sys.executable, "-c", TRAINS], {**environ, **more})

    folder = state / "runs" / "llama-7"
    log = folder / f"relay.{os.uname().nodename}.log"
    *_, said = ran.stderr.splitlines()
    told, command = said.split("; deliver them with: ")
    assert ran.returncode == 5
    assert told == f"trainspan: {endpoint} has not taken traces, metrics, logs (why: {log})"
    left = log.read_text().splitlines()[-1].partition("trainspan relay: ")[2]
    assert (
        left == f"{endpoint} has not taken traces, metrics, logs ({why}); they wait on disk: trainspan replay {folder}"
    )
    with OtlpSink(protocol, port=port) as sink:
        replayed = subprocess.run([sys.executable, "-m", *command.split()], env={**environ, **more}, check=False)
        assert replayed.returncode == 0
        assert {one.signal for one in sink.received()} == {"traces", "metrics", "logs"}


def test_what_was_delivered_needs_no_word(environ: dict[str, str]) -> None:
    """A line that is always there is not read when it matters."""
    with OtlpSink() as sink:
        ran = run(["--", sys.executable, "-c", TRAINS], {**environ, **sink.environ})

    assert len(ran.stderr.splitlines()) == 1, ran.stderr


def test_variable_that_spoils_an_endpoint_is_said(environ: dict[str, str]) -> None:
    """The relay keeps what it cannot send; the one who set the variable looks at the terminal."""
    spoiled = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "htp"}

    ran = run(["--", sys.executable, "-c", TRAINS], {**environ, **spoiled})

    *_, said = ran.stderr.splitlines()
    assert said.startswith("trainspan: OTEL_EXPORTER_OTLP_PROTOCOL='htp' is not understood: use http/protobuf or grpc;")
    assert said.endswith("traces, metrics, logs stay in the run folder")


def runs_named(said: str) -> list[str]:
    """The runs that `trainspan run` names at its end, by their ids."""
    return [Path(run).name for run in re.findall(r"trainspan report (\S+)", said)]


def test_every_run_of_a_command_is_named(environ: dict[str, str], state: Path, tmp_path: Path) -> None:
    """A script that trains twice makes two runs; whose id is not said is not found."""
    script = tmp_path / "train.py"
    script.write_text(TRAINS, encoding="utf-8")
    train = f"{sys.executable} {script}"

    ran = run(["--", "sh", "-c", f"{train}; {train}"], environ)

    made = sorted(folder.name for folder in (state / "runs").iterdir())
    assert ran.returncode == 5
    assert made == [made[0], f"{made[0]}-2"]
    assert runs_named(ran.stderr) == made
    assert f"trainspan: recorded 2 runs in {state}/runs; see them with:\n" in ran.stderr


def test_many_runs_are_named_within_a_bound(environ: dict[str, str], state: Path) -> None:
    """A sweep of a thousand must not push its own results off the screen."""
    script = f"for n in 1 2 3 4 5 6 7 8 9 10; do mkdir -p {state}/runs/$TRAINSPAN_LAUNCH_ID-$n; sleep 0.01; done"

    ran = run(["--", "sh", "-c", script], environ)

    _, earlier, *_ = ran.stderr.splitlines()
    assert earlier == "trainspan:   ... and 2 earlier ones"
    assert [name.rpartition("-")[2] for name in runs_named(ran.stderr)] == [str(n) for n in range(3, 11)]


def test_runs_that_others_record_meanwhile_are_not_named(environ: dict[str, str], state: Path) -> None:
    """Many jobs of one user share a directory, and their ranks come and go at the same time."""
    (state / "runs" / "other-before").mkdir(parents=True)
    touches = f"mkdir {state}/runs/other-new {state}/runs/other-before/recordings; sleep 0.01; "
    rendezvous = f"mkdir {state}/runs/eval {state}/runs/train; true --rdzv-id train; true --rdzv-id=eval"

    ran = run(["--", "sh", "-c", touches + rendezvous], environ)

    assert sorted(runs_named(ran.stderr)) == ["eval", "train"]


def test_refusal_to_record_is_not_taken_for_a_command_that_trains_nothing(environ: dict[str, str], state: Path) -> None:
    """The rank has said what is in the way; the last line must not say something else."""
    state.write_text("no directory", encoding="utf-8")

    ran = run(["--", sys.executable, "-c", TRAINS], environ)

    refused, said = ran.stderr.splitlines()
    assert ran.returncode == 5
    assert refused.startswith("trainspan: training goes on unrecorded: ")
    assert said.startswith("trainspan: nothing was recorded: no process of this command made an optimizer of torch or ")


@pytest.mark.parametrize(
    ("last_line", "reason", "cause", "planned"),
    [
        ("sys.exit(5)", "exited", "exit code 5", False),
        ("os.kill(os.getpid(), 9)", "died", "SIGKILL", False),
        ("sys.exit(0)", "closed", None, True),
    ],
)
def test_command_that_gives_up_is_a_failure(
    last_line: str, reason: str, cause: str | None, planned: bool, environ: dict[str, str], state: Path
) -> None:
    """A process that calls `sys.exit` leaves as one that is done; only who started it sees the exit code."""
    environ["TRAINSPAN_RUN_ID"] = "again"
    script = TRAINS.replace("sys.exit(5)", last_line).replace("import sys", "import os, sys")

    for ending in (script, TRAINS.replace("sys.exit(5)", "")):
        run(["--", sys.executable, "-c", ending], environ)

    report, goodput = (
        json.loads(
            subprocess.run(
                [sys.executable, "-m", "trainspan", command, "again", "--json"],
                env=environ,
                check=True,
                capture_output=True,
            ).stdout
        )
        for command in ("report", "goodput")
    )
    first = next(rank for rank in report["ranks"] if rank["attempt"] == 0)
    assert (first["ended"], first["ended_cause"]) == (reason, cause)
    assert [recovery["planned"] for recovery in goodput["recoveries"]] == [planned]
    assert not (state / "launches").exists()


def test_process_that_takes_its_time_to_leave_is_waited_for(environ: dict[str, str]) -> None:
    """It has closed its recording and still frees its devices and hands in its logs; its exit code comes after that."""
    environ["TRAINSPAN_RUN_ID"] = "slow"

    ran = run(["--", sys.executable, "-c", f"import atexit, time; atexit.register(time.sleep, 8)\n{TRAINS}"], environ)

    report = subprocess.run(
        [sys.executable, "-m", "trainspan", "report", "slow", "--json"], env=environ, check=True, capture_output=True
    )
    (rank,) = json.loads(report.stdout)["ranks"]
    assert ran.returncode == 5
    assert (rank["ended"], rank["ended_cause"]) == ("exited", "exit code 5")


def test_command_that_trains_nothing_leaves_nothing(environ: dict[str, str], state: Path) -> None:
    """Not even the folder in which the relay would have been told how it ended."""
    assert run(["--", "true"], environ).returncode == 0

    assert not state.exists()
