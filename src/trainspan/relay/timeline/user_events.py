"""What the script tells with the API's `event` and `configure`, read with distrust: a log can hold anything."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trainspan import names
from trainspan.relay.timeline.told import NAME_CHARACTERS, VALUE_CHARACTERS, Value, attributes_of

TAG_PREFIX: Final = "training.tag."
_TAGS: Final = (names.SESSION_TAG, names.PERF_TAG)
_MOST_TAGS: Final = 32
_VALUES: Final = (
    names.BASELINE,
    names.GLOBAL_BATCH_SIZE,
    names.MICRO_BATCH_SIZE,
    names.SEQUENCE_LENGTH,
    names.FLOPS_PER_SAMPLE,
    names.FLOPS_PER_TOKEN,
    names.TARGET_STEPS,
    names.TARGET_SAMPLES,
    names.TARGET_TOKENS,
    names.FIRST_GLOBAL_STEP,
    names.FIRST_SAMPLE,
)


class UserEvent(NamedTuple):
    """Something that has happened, at a monotonic time of the rank's host. `step`: in it; None: before the first."""

    name: str
    at_ns: int
    step: int | None
    attributes: Mapping[str, Value]


class Configured(NamedTuple):
    """What the script has told of itself, by the name on the wire. `tags` go on everything the rank sends."""

    values: Mapping[str, Value]
    tags: Mapping[str, str]


def user_event_of(event: Mapping[str, Any]) -> UserEvent | None:
    """What an event `user_event` tells of; None if it makes no sense."""
    name, at_ns, step = event.get("name"), event.get("ts"), event.get("step")
    if not (isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS and name.isprintable()):
        return None
    if not (isinstance(at_ns, int) and 0 <= at_ns < 1 << 62):
        return None
    is_step = type(step) is int and 0 <= step < 1 << 62
    return UserEvent(name, at_ns, step if is_step else None, attributes_of(event))


def configured_of(event: Mapping[str, Any]) -> Configured:
    """What an event `configured` tells."""
    told = attributes_of({"attributes": event.get("values")})
    own = attributes_of({"attributes": event.get("tags")})
    tags = {f"{TAG_PREFIX}{name}": str(value)[:VALUE_CHARACTERS] for name, value in own.items() if name.isprintable()}
    tags = dict(list(tags.items())[:_MOST_TAGS])
    tags.update({name: str(told[name]) for name in _TAGS if name in told})
    return Configured({name: told[name] for name in _VALUES if name in told}, tags)
