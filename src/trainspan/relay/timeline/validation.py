"""Loops of validation: a step that holds forward passes without gradients holds one loop of them."""

from typing import Final

from trainspan import names
from trainspan.names import Phase
from trainspan.relay.timeline.records import RankStep
from trainspan.relay.timeline.told import Told

_EVALUATIONS: Final = (names.SPAN_VALIDATION, names.SPAN_TESTING)


class Validations:
    """Those of one rank that its script has not told of itself."""

    def __init__(self) -> None:
        self._said: list[Told] = []  # until their step has come

    def take(self, told: Told) -> None:
        """Take over what the script tells; only its evaluations count."""
        if told.name in _EVALUATIONS:
            self._said.append(told)

    def of(self, step: RankStep) -> Told | None:
        """The loop in `step`, from its first batch to its last; None if it holds none that is to be told."""
        stays = [interval for interval in step.intervals if interval.phase is Phase.VALIDATION]
        if not stays or not step.validations or self._is_said(step):
            return None
        attributes = {names.VALIDATION_ITERATIONS: step.validations}
        return Told(names.SPAN_VALIDATION, stays[0].start_ns, stays[-1].end_ns, True, attributes, None)

    def _is_said(self, step: RankStep) -> bool:
        """Whether the script has told of an evaluation in `step`; what it told of earlier ones is forgotten."""
        said = [told for told in self._said if told.end_ns > step.start_ns]
        self._said = [told for told in said if told.end_ns > step.end_ns]
        return any(told.start_ns < step.end_ns for told in said)
