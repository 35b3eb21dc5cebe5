"""What a check has found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

State: TypeAlias = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    `state`: ok; a note, with which trainspan works all the same; or a problem, with which it does not.
    `advice`: what to do, for notes and problems that have a remedy.
    `facts`: the same for programs, by name.
    """

    area: str
    state: State
    text: str
    advice: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
