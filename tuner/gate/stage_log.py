"""The stages of one run of the gate: timed, reported as they end, and gathered into a verdict."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from tunebench.tuner.result import ErrorFigures, Stage, Verdict

Report = Callable[[Stage], None]
"""Called with each stage when it ends."""


class StageRefused(Exception):
    """A stage did not pass; the text says why, in one line.

    Attributes:
        errors: the error figures that it is about, where it is about any.
    """

    def __init__(self, reason: str, errors: ErrorFigures | None = None) -> None:
        super().__init__(reason)
        self.errors = errors


class StageLog:
    """What a run of the gate has found so far.

    Args:
        report: called with each stage when it ends.
        stages, errors: of an earlier run that this one goes on with.
    """

    def __init__(
        self, report: Report = lambda _: None, stages: tuple[Stage, ...] = (), errors: ErrorFigures | None = None
    ) -> None:
        self._report = report
        self._stages = list(stages)
        self._errors = errors
        self._reason = ""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[list[str]]:
        """Run a stage; the texts appended to the list it yields are its detail.

        Raises:
            StageRefused: the stage did not pass; it is kept all the same.
        """
        started = time.perf_counter()
        details: list[str] = []
        try:
            yield details
        except StageRefused as refusal:
            if not self._reason:
                self._reason = str(refusal)
                self._errors = refusal.errors or self._errors
            self._end(Stage(name, False, time.perf_counter() - started, str(refusal)))
            raise
        self._end(Stage(name, True, time.perf_counter() - started, "; ".join(details)))

    def _end(self, stage: Stage) -> None:
        self._stages.append(stage)
        self._report(stage)

    def keep_worst(self, errors: ErrorFigures) -> None:
        """Keep these figures where no others were worse."""
        if self._errors is None or errors.max_relative > self._errors.max_relative:
            self._errors = errors

    def verdict(self, tolerance: float) -> Verdict:
        """The outcome so far; its reason is the first refusal's."""
        return Verdict(not self._reason, tuple(self._stages), tolerance, self._errors, self._reason)
