"""A study's log without a database."""

from __future__ import annotations

from collections.abc import Sequence

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.result import Comparison, Stage, TrialResult
from tunebench.tuner.study.history import PastTrial


class MemoryLog:
    """A `TrialLog` that keeps everything in this process."""

    def __init__(self) -> None:
        self.results: list[TrialResult] = []
        self.comparison: Comparison | None = None

    def past(self, after: int = -1) -> Sequence[PastTrial]:
        """The trials recorded so far, from the number after this one on."""
        return [PastTrial.of(number, result) for number, result in enumerate(self.results) if number > after]

    def result(self, number: int) -> TrialResult:
        """The trial of that number."""
        return self.results[number]

    def claim(self, configuration: Configuration) -> bool:
        """There is no other process."""
        return all(configuration != one.configuration for one in self.results)

    def release(self) -> None:
        """There is nothing to let go of."""

    def record(self, result: TrialResult) -> int | None:
        """Append a trial; see `TrialLog.record`."""
        if any(result.configuration == one.configuration for one in self.results):
            return None
        self.results.append(result)
        return len(self.results) - 1

    def refuse(self, number: int, stage: Stage) -> None:
        """Keep what is left of the trial."""
        self.results[number] = self.results[number].refused_late(stage)

    def conclude(self, comparison: Comparison) -> None:
        """Keep the comparison."""
        self.comparison = comparison
