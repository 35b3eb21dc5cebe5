"""The engine, asked while the run goes on: what an attempt begins with, and how far back it remembers."""

from pathlib import Path

import pytest

from tests.unit.goodput_facts import S, begun, ended, history_of, steps
from trainspan.relay.goodput.facts import Fact, Loaded, Saved
from trainspan.relay.goodput.ledger import LedgerWriter
from trainspan.relay.goodput.life import PIECES
from trainspan.relay.goodput.queries import WHOLE, Scope, report, rolling
from trainspan.relay.live_history import THIN_EVERY, LiveHistory, Resumption

FIRST: list[Fact] = [
    begun(0, in_run=False),
    *steps(0, range(10, 21)),
    Saved(0, 0, 15 * S, 5, "ck-5"),
    ended(20),
]
"""Ten steps of a second after ten seconds, saved after five; dead at 20 s."""


@pytest.fixture
def history(tmp_path: Path) -> LiveHistory:
    """Of a relay that finds the first attempt in the ledger."""
    folder = tmp_path / "ledger"
    folder.mkdir(mode=0o700)
    writer = LedgerWriter(folder, "n0", 1)
    writer.append(FIRST)
    writer.close()
    return LiveHistory(lambda: sorted(folder.iterdir()))


def test_first_attempt_begins_with_nothing() -> None:
    """Most runs have no other."""
    history = LiveHistory(list)
    history.add(FIRST)

    assert history.resumption(0) == Resumption(0, 0, known=True)
    assert history.restarts() == {"failure": 0, "planned": 0}


def test_loaded_checkpoint_tells_what_is_done_again(history: LiveHistory) -> None:
    """Before its first step is counted: the counters never have to take anything back."""
    history.add([begun(24, attempt=1, in_run=False), Loaded(1, 0, 27 * S, None, "ck-5")])

    resumption = history.resumption(1)

    assert resumption == Resumption(4 * S, 5, known=True)
    assert history.restarts() == {"failure": 1, "planned": 0}


def test_without_a_load_the_first_step_tells(history: LiveHistory) -> None:
    """A script may load by means of its own; then the last save is what it can have resumed from."""
    history.add([begun(24, attempt=1, in_run=False)])
    before = history.resumption(1)

    history.add(steps(0, [30, 31], attempt=1))

    assert (before.steps_again, before.known) == (0, False)
    assert history.resumption(1) == Resumption(4 * S, 5, known=True)


def test_silence_counts_in_every_window_while_the_rank_lives() -> None:
    """A gauge that stands still while the job hangs says that all is well."""
    history = LiveHistory(list)
    history.add(FIRST[:-1])

    said = history.of_rank(0, 0, 100 * S)
    history.add(FIRST[-1:])
    over = history.of_rank(0, 0, 100 * S)

    assert said.goodput == {"run": 0.1, "attempt": 0.1, "1h": 0.1, "24h": 0.1}
    assert over.goodput == {"run": 0.5, "attempt": 0.5, "1h": 0.5, "24h": 0.5}


def test_windows_that_hold_no_time_are_left_out(history: LiveHistory) -> None:
    """A day after the last sign of life there is nothing to say of the last hour."""
    said = history.of_rank(0, 0, 20 * S + 5 * 3600 * S)

    assert set(said.goodput) == {"run", "attempt", "24h"}
    assert said.goodput["run"] == pytest.approx(10 / 20)


def test_detail_of_long_ago_is_let_go_and_the_windows_hold() -> None:
    """A relay that keeps every step needs 70 MB for eight ranks and a day, and asks all of them at each export."""
    waits = (0.0, 0.1, 0.4, 0.2)
    told: list[Fact] = [
        begun(0),
        *(one for at in range(40_000) for one in steps(at, [at, at + 1], wait=waits[at // 500 % 4])),
    ]
    live, whole = LiveHistory(list), history_of(told)
    now_ns = 40_000 * S

    for at in range(0, len(told), 1000):
        live.add(told[at : at + 1000])

    exact = {
        name: report(whole, window, Scope(rank=0)).goodput
        for name, window in {"run": WHOLE, "attempt": WHOLE, "1h": rolling(3600 * S, now_ns)}.items()
    }
    said = live.of_rank(0, 0, now_ns).goodput
    assert {name: said[name] for name in exact} == pytest.approx(exact, rel=1 / PIECES)
    assert live.places < 3600 + THIN_EVERY + 8 * PIECES
