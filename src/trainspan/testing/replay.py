"""Answers of a recorded machine as a function of time: what the fakes of NVML and AMD SMI replay.

A value in a recording is one of

    12, "text", {"gpu": 97, ...}          that, always
    [[0, 61], [5, 63]]                    61 for five seconds, then 63; each counts its own time from there
    {"error": "GPU_IS_LOST"}              no answer, but the error of that name
    {"error": "TIMEOUT", "after_s": 45}   the same, and the call takes so long
    {"from": 4e9, "per_s": 640000, "every_s": 0.1}
                                          a counter that rises at that rate and is refreshed ten times a second;
                                          with "bits": 32 it begins anew when that many are full
"""

from typing import Any


class Refusal(Exception):
    """A recorded error; its text is the name. `after_s`: how long the call takes."""

    def __init__(self, name: str, after_s: float):
        super().__init__(name)
        self.after_s = after_s


def at(value: Any, seconds: float) -> Any:
    """What `value` is, `seconds` after the recording began.

    Raises:
        Refusal: an error was recorded there.
    """
    while _is_series(value):
        since, value = max((step for step in value if step[0] <= seconds), key=lambda step: step[0], default=(0, None))
        seconds -= since
    if isinstance(value, dict) and "error" in value:
        raise Refusal(value["error"], value.get("after_s", 0.0))
    if isinstance(value, dict) and "per_s" in value:
        every_s = value.get("every_s", 0.1)
        # A little more than nothing: 0.3 s are three refreshes, whatever binary fractions make of it.
        count = int(value.get("from", 0) + value["per_s"] * every_s * int(seconds / every_s + 1e-6))
        return count % (1 << value["bits"]) if "bits" in value else count
    return value


def _is_series(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(step, list) and len(step) == 2 for step in value)
