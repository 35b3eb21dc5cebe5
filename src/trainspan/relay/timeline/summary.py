"""What `trainspan report` reads of a run: `summary.json` in the run folder, one for each node.

    {"schema": "trainspan.summary", "version": 1, "run": "...", "ranks": [<RankSummary>, ...],
     "launchers": [<LauncherSummary>, ...]}

A node's relay accumulates it; summaries of other nodes and of later attempts are merged in. A process is known by the
name of its recording, so merging the same one twice is harmless.
"""

import json
from typing import Any, Final

from trainspan.errors import RecordingError
from trainspan.identity import Identity
from trainspan.relay.timeline.fields import field, read_at
from trainspan.relay.timeline.launcher_summary import LauncherSummary
from trainspan.relay.timeline.rank_summary import RankSummary

SCHEMA: Final = "trainspan.summary"
VERSION: Final = 1


class Summary:
    """A run, as far as it is known here.

    Attributes:
        run: id of the run.
        ranks: its recorded processes by the name of their recording; `launchers`: likewise.
    """

    def __init__(self, run: str):
        self.run = run
        self.ranks: dict[str, RankSummary] = {}
        self.launchers: dict[str, LauncherSummary] = {}

    def known(self, recording: str, identity: Identity) -> RankSummary | None:
        """What is known of the process that made this recording; None: nothing."""
        rank = self.ranks.get(recording)
        return rank if rank is not None and rank.identity == identity else None

    def add(self, rank: RankSummary) -> None:
        """Take over a process. If it is known already, the summary that covers more time stays."""
        mine = self.ranks.get(rank.recording)
        if mine is None or (rank.elapsed_ns, rank.steps) >= (mine.elapsed_ns, mine.steps):
            self.ranks[rank.recording] = rank

    def add_launcher(self, launcher: LauncherSummary) -> None:
        """Take over a launcher. If it is known already, what was seen later stays."""
        mine = self.launchers.get(launcher.recording)
        if mine is None or launcher.seen_unix_ns >= mine.seen_unix_ns:
            self.launchers[launcher.recording] = launcher

    def merge(self, other: "Summary") -> None:
        """Take over the processes and launchers of `other`.

        Raises:
            RecordingError: `other` is of another run.
        """
        if other.run != self.run:
            raise RecordingError(f"a summary of run {other.run!r} lies with run {self.run!r}; move it to its own run")
        for rank in other.ranks.values():
            self.add(rank)
        for launcher in other.launchers.values():
            self.add_launcher(launcher)

    def in_order(self) -> list[RankSummary]:
        """All processes by attempt, rank and start."""
        return sorted(self.ranks.values(), key=lambda r: (r.identity.attempt, r.identity.rank, r.process_start_unix_ns))

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        ranks = [rank.to_json() for rank in self.in_order()]
        launchers = [launcher.to_json() for launcher in self.launchers.values()]
        return {"schema": SCHEMA, "version": VERSION, "run": self.run, "ranks": ranks, "launchers": launchers}

    @classmethod
    def from_text(cls, text: bytes) -> "Summary":
        """The summary in a file that holds `text`.

        Raises:
            RecordingError: as `from_json` does, and for what is no JSON.
        """
        try:
            return cls.from_json(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise RecordingError(f"it is not JSON: {error}") from error

    @classmethod
    def from_json(cls, written: Any) -> "Summary":
        """The summary that was written.

        Args:
            written: what `json.loads` made of the file.

        Raises:
            RecordingError: it is no summary, one of another version, or torn; the message says what is wrong where.
        """
        if not isinstance(written, dict) or written.get("schema") != SCHEMA:
            raise RecordingError(f"no summary of trainspan: it is no JSON object with schema {SCHEMA!r}")
        version = written.get("version")
        if version != VERSION:
            raise RecordingError(f"a summary of version {version!r}, and this trainspan reads version {VERSION}")
        try:
            summary = cls(field(written, "run", str))
            for index, rank in enumerate(field(written, "ranks", list)):
                summary.add(read_at(f"ranks[{index}]", RankSummary.from_json, rank))
            # Earlier versions wrote none.
            for index, launcher in enumerate(field(written, "launchers", list) if "launchers" in written else ()):
                summary.add_launcher(read_at(f"launchers[{index}]", LauncherSummary.from_json, launcher))
        except ValueError as error:
            raise RecordingError(f"a torn or foreign summary: {error}") from error
        return summary
