"""Scopes go where the objects that hold them go: into copies, into pickles, and to other processes."""

from pathlib import Path
from pickletools import genops
from typing import Any, NamedTuple, get_type_hints

import pytest

import trainspan
from tests.data.training.kept import SCOPES
from tests.integration.recorded import Recording, Run, in_good_order, phases_of, start
from trainspan.record.scope import Scope

SPANS = (
    "training.application",
    "training.init.tokenizer",
    "training.init.model",
    "training.init.optimizer",
    "training.init.data_loader",
    "training.init.process_group",
    "training.loop",
    "training.validation",
    "training.testing",
    "training.generation",
    "training.custom.export",
)
MAKERS = {f"trainspan.api {name}" for name in SCOPES if not name.startswith("init_")}
PHASES = ["custom.of_its_own", *["validation"] * 3, "generation", "checkpoint_save", "checkpoint_load"]
FIELDS = ("event", "name", "kind", "state", "ok", "attributes", "path", "step", "staging", "run_step")


class Told(NamedTuple):
    """What a recording has of the scopes, without its times."""

    phases: list[list[str]]
    events: list[tuple[Any, ...]]
    configured: dict[str, Any]
    global_steps: list[int]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is recorded lies, and what is pickled."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def written(place: Path) -> dict[tuple[str, bool], Path]:
    """What each way writes, in a process that records and in one that does not: by (way, recorded)."""
    ways = [(way, recorded) for way in ("pickled", "sent") for recorded in (True, False)]
    files = {(way, recorded): place / f"{way}_{recorded}.oldest" for way, recorded in ways}
    for (way, recorded), file in files.items():
        run(way, file, state=place / file.stem if recorded else None)
    return files


@pytest.fixture(scope="module")
def fresh(place: Path) -> Told:
    """What scopes tell that have gone nowhere."""
    return told(run("fresh", state=place / "fresh"))


def run(scenario: str, *files: Path, state: Path | None) -> Run:
    """The scenario, which must go well and have nothing to warn of."""
    ended = start("kept.py", scenario, *map(str, files), state=state).ended()
    assert ended.exit_code == 0, ended.stderr
    assert (ended.stderr, ended.lines[-1]["warned"]) == ("", {})
    return ended


def told(ended: Run) -> Told:
    """What its one recording has."""
    recording: Recording
    (recording,) = ended.recordings
    assert in_good_order(recording)
    assert recording.unfinished is not None
    events = [event for event in recording.events if event["event"] in ("span", "checkpoint", "misuse")]
    configured = [event["values"] for event in recording.events if event["event"] == "configured"]
    return Told(
        [phases_of(step) for step in recording.steps],
        [tuple(event.get(field) for field in FIELDS) for event in events],
        {name: value for values in configured for name, value in values.items()},
        [event["global_step"] for event in recording.events if event["event"] == "progress"],
    )


def test_every_scope_of_the_api_is_tried() -> None:
    """A kind that nobody has tried is the one that ends a run when its model is saved."""
    makers = {name for name in trainspan.__all__ if get_type_hints(getattr(trainspan, name)).get("return") is Scope}

    assert set(SCOPES) == makers


def test_scopes_as_they_come(fresh: Told) -> None:
    """What the tests below compare with: equal to nothing would be equal."""
    assert fresh.phases == [[], PHASES]
    assert tuple(name for event, name, *_ in fresh.events if event == "span") == SPANS
    assert [kind for event, _, kind, *_ in fresh.events if event != "span"] == ["save", "load"]
    assert fresh.configured == {"training.target.steps": 100}
    assert fresh.global_steps == [7]


@pytest.mark.parametrize("way", ["copied", "copied_deeply"])
def test_copy_is_another_scope_like_it(way: str, fresh: Told, place: Path) -> None:
    """The average of a model's weights is a copy of the model. Of a step only the number is not copied."""
    assert told(run(way, state=place / way)) == fresh._replace(global_steps=[])


def test_copy_of_what_is_open_is_not(place: Path) -> None:
    """A model copied in its own forward is not in a forward."""
    ended = run("copied_while_open", state=place / "open")

    (recording,) = ended.recordings
    assert [interval.phase.wire for interval in recording.early] == ["custom.of_its_own"] * 3
    assert [(name, attributes) for _, name, _, _, _, attributes, *_ in told(ended).events] == [
        ("training.custom.export", {"files": 3}),
        ("training.custom.export", None),
    ]


@pytest.mark.parametrize("protocol", [".oldest", ".newest"])
def test_pickle_is_the_call_that_made_it(
    protocol: str, fresh: Told, written: dict[tuple[str, bool], Path], place: Path
) -> None:
    """A checkpoint of a whole model, and what multiprocessing sends: the process that loads it records as this one."""
    file = written["pickled", True].with_suffix(protocol)

    assert told(run("unpickled", file, state=place / f"unpickled{protocol}")) == fresh


def test_decorated_function_is_sent_with_its_scope(
    fresh: Told, written: dict[tuple[str, bool], Path], place: Path
) -> None:
    """Ray and submitit send what `__main__` defines by value, and all that it holds on to."""
    ended = run("received", written["sent", True], state=place / "received")

    assert told(ended) == fresh._replace(phases=[[], PHASES, ["custom.waiting", "custom.method"]], global_steps=[])


@pytest.mark.parametrize(
    ("way", "recorded", "expected"),
    [
        ("pickled", True, MAKERS),
        ("sent", True, MAKERS | {"trainspan.api _is_traced"}),
        ("pickled", False, {"trainspan.record.scope IDLE"}),
        ("sent", False, set()),
    ],
)
def test_pickle_holds_only_names_that_stay(
    way: str, recorded: bool, expected: set[str], written: dict[tuple[str, bool], Path]
) -> None:
    """A checkpoint outlives the version of trainspan that wrote it: none of these can be renamed or moved."""
    pickled = written[way, recorded].read_bytes()

    names = {str(word) for code, word, _ in genops(pickled) if code.name == "GLOBAL"}

    assert {name for name in names if name.startswith("trainspan")} == expected


@pytest.mark.parametrize(("way", "back"), [("pickled", "unpickled"), ("sent", "received")])
@pytest.mark.parametrize("recorded", [True, False])
def test_what_was_written_is_read_without_trainspan_on(
    way: str, back: str, recorded: bool, written: dict[tuple[str, bool], Path]
) -> None:
    """Who looks at a checkpoint need not record, and must not have to."""
    assert run(back, written[way, recorded], state=None).recordings == []


@pytest.mark.parametrize(("way", "back"), [("pickled", "unpickled"), ("sent", "received")])
def test_what_was_written_with_trainspan_off_does_nothing(
    way: str, back: str, written: dict[tuple[str, bool], Path], place: Path
) -> None:
    """It was one object for all of them, which has no name; where it is read, it must do as little."""
    ended = told(run(back, written[way, False], state=place / f"{back}_from_off"))

    assert (ended.events, any(ended.phases)) == ([], False)


@pytest.mark.parametrize("recorded", [True, False])
def test_decorated_function_is_found_by_its_name(recorded: bool, place: Path) -> None:
    """Multiprocessing sends its name alone, and looks it up where it has been imported again."""
    run("spawned", state=place / "spawned" if recorded else None)
