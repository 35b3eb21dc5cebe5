"""Many recordings are followed at once, and none of them fills the memory."""

from pathlib import Path

from tests.unit.recordings import CAPACITY, record_into
from trainspan.recording.reader import Refusal
from trainspan.relay.tail import MOST_MARKS, Tail


def test_long_recordings_take_turns_and_end_with_their_last_part(tmp_path: Path) -> None:
    """A replay of two ranks must see both parts of a step close together, and neither rank at its end before it is."""
    recordings = [record_into(tmp_path, 16 * CAPACITY) for _ in range(2)]
    for writer, marker in recordings:
        for _ in range(2 * MOST_MARKS + 1):
            marker.step(0)
        writer.close(1)
    refusals: list[Refusal] = []

    seen = list(Tail(tmp_path, refusals.append).look())

    first, second = (sighting.reader.path for sighting in seen[:2])
    assert {first, second} == {writer.path for writer, _ in recordings}
    assert [sighting.reader.path for sighting in seen] == [first, second] * 3
    assert [len(sighting.marks) // 2 for sighting in seen] == [MOST_MARKS] * 4 + [1] * 2
    assert [sighting.ended for sighting in seen] == [None] * 4 + ["closed"] * 2
    assert refusals == []
    for sighting in seen[:2]:
        sighting.reader.close()
