"""The harness of the full battery: reference and contender side by side, given the same calls."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tunebench.tuner.gate.answers import Answers, Pair
from tunebench.tuner.gate.boundary.sandbox import ReferenceSandboxError
from tunebench.tuner.gate.case import Case
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.faults import FAILURES, ReferenceRaisedError
from tunebench.tuner.gate.judge import judge_buffers, judge_inputs, judge_structure, judge_values
from tunebench.tuner.gate.manner import Manner, Recording
from tunebench.tuner.gate.memory import Bands, synchronise
from tunebench.tuner.gate.model import ORDINARY, Answer, CallOptions, in_part
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageRefused, about
from tunebench.tuner.gate.values import Values, mapped
from tunebench.tuner.result import NOT_ASKED, UNSHOWN
from tunebench.tuner.users_code import described


class Harness:
    """One contender beside the reference.

    Args:
        answers: of the reference, shared by all contenders.
        ask: is told the label of each question before it is asked.

    Attributes:
        sizes_met: the reference at the other sizes that were asked about.
    """

    def __init__(
        self, answers: Answers, contender: Contender, ask: Callable[[str], None] = lambda _label: None
    ) -> None:
        self.answers = answers
        self.contender = contender
        self.draw = answers.draw
        self._ask = ask
        self.device = answers.device
        self._stage = self._label = ""
        self._asked = 0
        self._passed_over: Counter[str] = Counter()
        self._notes: list[str] = []
        self._left_out = ""
        self._base: Source | None = None
        self._manner = Manner(answers.mode)
        self.sizes_met: list[Source] = []

    def begin(self, stage: str) -> None:
        """Count anew what was asked."""
        self._stage = self._label = stage
        self._asked = 0
        self._passed_over.clear()
        self._notes.clear()
        self._left_out = ""

    @property
    def summary(self) -> list[str]:
        """Lines on what was asked and what was not, for people."""
        asked = [f"{self._asked} cases"] if self._asked else []
        passed_over = [f"{count} passed over: {reason}" for reason, count in self._passed_over.items()]
        if self._left_out:
            return [f"{UNSHOWN}{self._left_out}", *asked, *self._notes, *passed_over]
        if not (asked or self._notes):
            return [f"{NOT_ASKED}: {', '.join(self._passed_over) or 'there is nothing to ask'}"]
        return [*asked, *self._notes, *passed_over]

    def tell(self, notes: Iterable[str]) -> None:
        """Add to the notes on this stage."""
        self._notes.extend(notes)

    def count(self) -> None:
        """Note that something was asked."""
        self._asked += 1

    def pass_over(self, reason: str) -> None:
        """Note that something was not asked, and why."""
        self._passed_over[reason] += 1

    def leave_out(self, reason: str) -> None:
        """Note that what the stage is about could not be asked, whatever else was, and why."""
        self._left_out = reason

    @property
    def base(self) -> Source:
        """The reference at the sizes that questions are asked at: reduced ones where the contender takes them."""
        if self._base is None:
            self._base = self._find_base()
            self.answers.note_serving(self._base)
        return self._base

    def _find_base(self) -> Source:
        served = None
        for source in self.answers.reductions():
            if (pair := self._served_at(source)) is None:
                continue
            if self._is_right(pair):
                return source
            served = served or pair
        if served is not None:
            with self.contender.building():
                if self._is_right(served):
                    return served.source
        return self.answers.source

    def _served_at(self, source: Source) -> Pair | None:
        """A pair at other sizes; None where the reference would serve the contender's part, or says something else."""
        try:
            if self.answers.is_alike(source):
                pair = self.pair(source)
                if self.contender.serves(pair.candidate, pair.inputs(0)):
                    return pair
        except (StageRefused, *FAILURES):
            synchronise(self.device)
        return None

    def _is_right(self, pair: Pair) -> bool:
        """Whether the contender is right there at all: one that knows the problem's sizes only is asked at these."""
        try:
            inputs = pair.inputs(0)
            if pair.candidate.ready(inputs) is not None:
                return False
            if (case := self.answers.case(pair, "reduced sizes", lambda: _copies(inputs, ORDINARY))) is None:
                return False
            self.judge(case, pair.candidate.call(inputs, replace(ORDINARY, seed=case.call_seed)))
        except (StageRefused, *FAILURES):
            synchronise(self.device)  # raises where no later call can succeed either
            return False
        return True

    def pair(self, source: Source | None = None) -> Pair:
        """A new pair with the same weights, at the base's sizes or at another's.

        Raises:
            StageRefused: the contender's module cannot be made, or does not take the reference's state.
        """
        source, manner = source or self.base, self._manner
        reference = in_part(source.model(manner.mode), manner)
        try:
            candidate = in_part(self.contender.model(source, manner.mode, reference.state()), manner)
        except FAILURES as error:
            raise StageRefused(f"the model cannot be made like the reference: {described(error)}") from error
        candidate.guard()
        return Pair(source, manner, reference, candidate, f"{dict(source.sizes)} {manner}", self.draw)

    @contextlib.contextmanager
    def in_manner(self, manner: Manner) -> Iterator[None]:
        """Ask in another manner than the run is about."""
        before, self._manner = self._manner, manner
        try:
            yield
        finally:
            self._manner = before

    def manners(self) -> list[Manner]:
        """Return the other manners than that of the run, in the order that is drawn: every mode with everything that
        torch may record, and every mode with one part alone in the other one."""
        own = self.answers.mode
        modes = self.contender.modes(own)
        manners = [Manner(mode, recording) for mode in modes for recording in Recording]
        parts = self.draw.shuffled("a part", self.answers.original.parts()) if len(modes) > 1 else []
        for mode, recording in zip(modes, self.draw.shuffled("with a part", Recording), strict=False):
            manners += [Manner(mode, recording, part) for part in parts[:1]]
        return self.draw.shuffled("manners", [manner for manner in manners if manner != Manner(own)])

    def labelled(self, label: str) -> str:
        """Return the label with the manner in which it is asked, where that is not the run's."""
        return label if self._manner == Manner(self.answers.mode) else f"{label}, in {self._manner}"

    def in_form(self, pair: Pair, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Inputs that `get_inputs` has not drawn, with what all of its own have in common."""
        return self.answers.form(pair.source).keep(inputs)

    def agree(
        self,
        pair: Pair,
        inputs: Sequence[Any],
        label: str,
        options: CallOptions = ORDINARY,
        *,
        strict: bool = False,
        everywhere: bool = False,
        error: float = 0.0,
    ) -> Values | None:
        """Ask both the same thing; what the contender returns, None where there was nothing to ask.

        Args:
            label: which question of its stage this is.
            options: how the contender is called.
            strict: the output has to lie in memory as the reference's does (see `judge.judge_structure`).
            everywhere: what is not finite is judged on finite inputs too (see `oracle.ask`).
            error: passes as well.

        Raises:
            StageRefused: the contender differs from the reference.
        """
        if self._manner.recording is not Recording.NOTHING:
            options = replace(options, recording=self._manner.recording)
        label = self.labelled(label)
        with about(pair.source, inputs, strict=strict, manner=self._manner):
            with self.refusing(label):
                if (reason := pair.candidate.ready(inputs)) is not None:
                    self.pass_over(reason)
                    return None
            name, given = f"{self._stage}: {label}", lambda: _copies(inputs, options)
            case = self.answers.case(pair, name, given, options, error, everywhere=everywhere)
            if case is None:
                self.pass_over("the reference refuses such inputs")
                return None
            self.count()
            with self.refusing(label):
                asked = replace(options, sums=True, after=bool(case.changed), seed=case.call_seed)
                answer = pair.candidate.call(inputs, asked)
                synchronise(self.device)
            output = self.judge(case, answer, strict=strict)
            judge_buffers(case, answer.buffers)
            if not answer.intact:
                raise StageRefused(f"{label}: memory outside of a buffer was written")
            judge_inputs(case, answer)
            return output

    def judge(self, case: Case, answer: Answer, *, strict: bool = False) -> Values:
        """The output, once its structure and values are right.

        Raises:
            StageRefused: they are not.
        """
        exemptions = self.contender.exemptions
        output = judge_structure(
            case,
            answer.output,
            aliases=answer.aliases,
            shared=answer.shared,
            strict=strict,
            dense=exemptions.dense,
        )
        judge_values(case, output, rewritten=exemptions.rewrites_algebra)
        return output

    @contextlib.contextmanager
    def reference_first(self, label: str = "") -> Iterator[None]:
        """Pass over what the reference raises in this block, or does not survive: it is no fault of the contender's.

        Args:
            label: what is asked; that which was asked last where there is none.

        Raises:
            ReferenceSandboxError: the reference's process is gone, and there cannot be another.
        """
        if label:
            self.now(label)
        try:
            yield
        except ReferenceRaisedError as error:
            self.pass_over(f"the reference raises {described(error)} ({self._label})")
        except ReferenceSandboxError as error:
            if not self.answers.revive():
                raise
            self.pass_over(f"the reference does not survive it: {error} ({self._label})")

    def now(self, label: str) -> None:
        """Say which question of the stage comes now."""
        self._label = label
        self._ask(label)

    @contextlib.contextmanager
    def refusing(self, label: str) -> Any:
        """Turn what the contender raises into a refusal, unless the device is lost."""
        self.now(label)
        try:
            yield
        except FAILURES as error:
            synchronise(self.device)  # raises where no later call can succeed either
            raise StageRefused(f"{label}: {described(error)}") from error


def _copies(inputs: Sequence[Any], options: CallOptions) -> tuple[Any, ...]:
    """Copies with the strides and the alignment of the inputs, on the device where they are asked about."""
    copies = (Bands().around(value) for value in inputs)
    if options.device is None:
        return tuple(copies)
    return tuple(mapped(value, lambda tensor: tensor.to(options.device)) for value in copies)
