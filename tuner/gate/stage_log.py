"""The stages of one run of the gate: timed, reported as they end, and gathered into a verdict."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tunebench.tuner.gate.manner import Manner
from tunebench.tuner.gate.refusal import Question
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.result import ErrorFigures, Stage, Verdict


class StageRefused(Exception):
    """A stage did not pass; the text says why, in one line.

    Attributes:
        errors: the error figures that it is about, where it is about any.
        source, inputs: of the call that it is about, where it is about one; the source is None where the call is at the
            problem's own sizes.
        strict: where the output of that call lies in memory counts as well.
        manner: in which it is made; None for that of the whole run.
    """

    def __init__(self, reason: str, errors: ErrorFigures | None = None) -> None:
        super().__init__(reason)
        self.errors = errors
        self.source: Source | None = None
        self.inputs: Sequence[Any] | None = None
        self.strict = False
        self.manner: Manner | None = None


Listen = Callable[[Question | Stage, StageRefused | None], None]
"""Called with each question that is about to be asked, and with each stage that has ended, and why it did not pass."""


@contextlib.contextmanager
def about(
    source: Source | None, inputs: Sequence[Any], *, strict: bool = False, manner: Manner | None = None
) -> Iterator[None]:
    """Whatever is refused in this block is about a call with these inputs; see `StageRefused`."""
    try:
        yield
    except StageRefused as refusal:
        refusal.source, refusal.inputs, refusal.strict, refusal.manner = source, inputs, strict, manner
        raise


class StageLog:
    """The findings of a run of the gate so far.

    Args:
        listen: called with each question and with each stage that ends.
        stages, errors: of an earlier run that this one goes on with.
    """

    def __init__(
        self,
        listen: Listen = lambda _what, _refusal: None,
        stages: tuple[Stage, ...] = (),
        errors: ErrorFigures | None = None,
    ) -> None:
        self._listen = listen
        self._stages = list(stages)
        self._errors = errors
        self._reason = ""
        self._asked = Question("")

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[list[str]]:
        """Run a stage; the texts appended to the list it yields are its detail.

        Raises:
            StageRefused: the stage did not pass; it is kept all the same.
        """
        started = time.perf_counter()
        details: list[str] = []
        self.begin(name)
        try:
            yield details
        except StageRefused as refusal:
            self.add(name, time.perf_counter() - started, refusal)
            raise
        self.add(name, time.perf_counter() - started, details)

    def begin(self, name: str) -> None:
        """Say which stage comes now."""
        self._now(Question(name))

    def add(self, name: str, seconds: float, found: Sequence[str] | StageRefused) -> None:
        """Add a stage that has ended: its details, or why it did not pass."""
        if not isinstance(found, StageRefused):
            self._end(Stage(name, True, seconds, "; ".join(found)), None)
            return
        if not self._reason:
            self._reason = str(found)
            self._errors = found.errors or self._errors
        self._end(Stage(name, False, seconds, str(found)), found)

    def ask(self, label: str) -> None:
        """Say which question of the stage comes now."""
        self._now(Question(self._asked.stage, label))

    @property
    def until(self) -> str:
        """How far it came, for people."""
        return str(self._asked)

    @property
    def begun(self) -> list[str]:
        """The names of all stages so far, with that which was asked last."""
        return [*(stage.name for stage in self._stages), self._asked.stage]

    def _now(self, question: Question) -> None:
        if question != self._asked:
            self._asked = question
            self._listen(question, None)

    def _end(self, stage: Stage, refusal: StageRefused | None) -> None:
        self._stages.append(stage)
        self._listen(stage, refusal)

    def keep_worst(self, errors: ErrorFigures) -> None:
        """Keep these figures where no others were worse."""
        if self._errors is None or errors.max_relative > self._errors.max_relative:
            self._errors = errors

    def verdict(self, tolerance: float) -> Verdict:
        """The outcome so far; its reason is the first refusal's."""
        return Verdict(not self._reason, tuple(self._stages), tolerance, self._errors, self._reason)
