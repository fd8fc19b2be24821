"""The quick battery, which every variant goes through at the tuned problem's own size.

What it costs on a device is passes over memory and questions that the host waits for; so the reference's answers are
known beforehand, inputs are compared by checksum, and one question is asked for all pieces of an output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from tunebench.tuner.gate.case import Case
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.judge import errors_in, judge_buffers, judge_inputs, judge_structure, judge_values
from tunebench.tuner.gate.memory import SENTINELS, count_untouched, same_bits
from tunebench.tuner.gate.model import ORDINARY, Answer, CallOptions, Model
from tunebench.tuner.gate.oracle import Oracle
from tunebench.tuner.gate.stage_log import StageLog, StageRefused, about
from tunebench.tuner.gate.values import Values
from tunebench.tuner.kernel import Plan, TunableModel
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import ErrorFigures, Verdict

Prepare = Callable[[Sequence[Any]], None]
"""Makes the model ready for a call with these inputs; refuses where that call would not be what is on trial."""


def pinned(model: TunableModel, plan: Plan) -> Prepare:
    """A model that runs a plan."""

    def prepare(inputs: Sequence[Any]) -> None:
        problem = model.problem(*inputs)
        asked = plan.problem
        if problem is None or problem.at(asked.accuracy, asked.objective) != asked.named:
            raise StageRefused(f"the model takes its inputs for another problem: {problem}")
        model.pin(plan)

    return prepare


class QuickGate:
    """Checks variants of one model against one oracle.

    Stages: `degenerate` (these inputs can tell an answer from none), `structure` (with shapes, dtypes and devices),
    `bounds` (guard bands intact), `inputs` (inputs and parameters unchanged), `written` (every element, whatever memory
    held), `repeatable` (bitwise, the first result held while the second is made), `values` and `buffers` (against
    float64), `accuracy` (where the oracle asks for more than the tolerance), `after timing`.

    Args:
        model: carries the reference's weights; its parameters and buffers are put between guard bands.
        renew: makes it anew, for each call where the reference keeps a state from call to call.
    """

    def __init__(
        self, model: Model, oracle: Oracle, exemptions: Exemptions, renew: Callable[[], Model] | None = None
    ) -> None:
        self._renew = renew if oracle.keeps_state else None
        self._oracle = oracle
        self._exemptions = exemptions
        self._errors: dict[str, dict[str, ErrorFigures]] = {}
        self._begin(model)

    def _begin(self, model: Model) -> None:
        self._model = model
        model.remember()
        model.guard()

    def check(self, prepare: Prepare, log: StageLog) -> Verdict:
        """The verdict on whatever `prepare` makes ready: cheap stages first; the first refusal ends it.

        Raises:
            LaunchError: the device refused a launch.
        """
        self._errors.clear()
        with self._running():
            self._judge_oracle(log)
            answer = self._first_run(prepare, log)
            self._second_run(prepare, log, answer)
            first, *others = self._oracle.cases
            self._judge(log, first, lambda: answer)
            for case in others:
                self._judge(log, case, lambda case=case: self._run(prepare, case, SENTINELS[0]))  # type: ignore[misc]
            self._judge_accuracy(log)
        return log.verdict(self._oracle.tolerance)

    def check_again(self, prepare: Prepare, verdict: Verdict, timed: Values) -> Verdict:
        """The same verdict with one more stage: an output of the timed loop, and a call that comes after it.

        Args:
            timed: what the last timed call on the first case's inputs returned.
        """
        log = StageLog(stages=verdict.stages, errors=verdict.errors)
        first, last = self._oracle.cases[0], self._oracle.cases[-1]
        with self._running(), log.stage("after timing"):
            if self._oracle.steady:
                self._values(replace(first, name="an output of the timed loop"), timed, aliases=())
            answer = self._run(prepare, last, SENTINELS[0])
            self._values(replace(last, name="a call after timing"), answer.output, aliases=answer.aliases)
            if self._oracle.accuracy is not Accuracy.TOLERANCE:
                self._errors[last.name] = errors_in(last, answer.output)
                if self._oracle.steady:
                    self._errors[first.name] = errors_in(first, timed)
                self._refuse_less_exact("timed, it is ")
        return log.verdict(verdict.tolerance)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        try:
            with torch.no_grad(), contextlib.suppress(StageRefused):  # the log has it
                yield
        finally:
            self._model.reset(SENTINELS[0])
            self._model.forget()

    def _run(self, prepare: Prepare, case: Case, byte: int, options: CallOptions = ORDINARY) -> Answer:
        """Return the model's answer, from the state of the beginning; `intact` is about every guard band."""
        if self._renew is not None:
            self._begin(self._renew())
        self._model.reset(byte)
        prepare(case.inputs)
        self._oracle.bands.fill(byte)
        # The case's inputs stand between bands already; copies of them do where the call changes them.
        options = replace(options, byte=byte, guarded=bool(case.changed), seed=case.call_seed)
        answer = self._model.call(case.inputs, options)
        return replace(answer, intact=answer.intact and self._oracle.bands.intact)

    def _judge_oracle(self, log: StageLog) -> None:
        with log.stage("degenerate") as details:
            details.extend({case.note: None for case in self._oracle.cases if case.note})
            if self._oracle.degenerate:
                raise StageRefused(
                    f"{', '.join(self._oracle.degenerate)} would pass on all {len(self._oracle.cases)} inputs, so "
                    "nothing can be proven with them: change get_inputs"
                )

    def _first_run(self, prepare: Prepare, log: StageLog) -> Answer:
        case = self._oracle.cases[0]
        with log.stage("structure"), about(None, case.inputs):
            answer = self._run(prepare, case, SENTINELS[0], CallOptions(sums=True, after=bool(case.changed), keep=True))
            judge_structure(case, answer.output, aliases=answer.aliases)
        with log.stage("bounds"):
            if not answer.intact:
                raise StageRefused(f"{case.name}: memory outside of a buffer was written")
        with log.stage("inputs"):
            for name in self._model.changed_parameters():
                raise StageRefused(f"{case.name}: parameter '{name}' was changed")
            judge_inputs(case, answer)
        return replace(answer, buffers={name: buffer.clone() for name, buffer in answer.buffers.items()})

    def _second_run(self, prepare: Prepare, log: StageLog, first: Answer) -> None:
        case = self._oracle.cases[0]
        output = judge_structure(case, first.output)
        with log.stage("written"):
            answer = self._run(prepare, case, SENTINELS[1])
            again = judge_structure(case, answer.output, aliases=answer.aliases)
            pairs = [(tensor, again.tensors[path]) for path, tensor in output.tensors.items()]
            same = all(same_bits(one, other) for one, other in pairs)
            if not answer.intact:
                raise StageRefused(f"{case.name}: memory outside of a buffer was written")
            # Memory held something else before each run, so that equal outputs are written ones.
            if not same and (untouched := sum(count_untouched(pair, SENTINELS) for pair in pairs)):
                total = sum(tensor.numel() for tensor, _ in pairs)
                raise StageRefused(f"{untouched} of {total} elements were never written", _never(untouched))
        with log.stage("repeatable"):
            if answer.repeats:
                raise StageRefused("a later call overwrites the output of an earlier one")
            if not same and not self._exemptions.atomics:
                raise StageRefused(
                    "two runs on the same inputs differ: a race, or a read of memory that was never written"
                )

    def _judge(self, log: StageLog, case: Case, run: Callable[[], Answer]) -> None:
        with log.stage(f"values, {case.name}"), about(None, case.inputs):
            answer = run()
            log.keep_worst(self._values(case, answer.output, aliases=answer.aliases))
            if self._oracle.accuracy is not Accuracy.TOLERANCE:
                self._errors[case.name] = errors_in(case, answer.output)
        with log.stage(f"buffers, {case.name}"):
            judge_buffers(case, answer.buffers)

    def _judge_accuracy(self, log: StageLog) -> None:
        if self._oracle.accuracy is Accuracy.TOLERANCE:
            return
        with log.stage("accuracy") as details:
            details.extend(self._refuse_less_exact())

    def _refuse_less_exact(self, when: str = "") -> list[str]:
        """Return what was found in all draws, for people.

        Raises:
            StageRefused: the latest answers are more wrong than the reference's.
        """
        found = self._oracle.exactness(self._errors)
        for one in found:
            if not one.holds:
                raise StageRefused(f"{when}less exact than eager: {one}, with its noise {one.allowed}")
        return [str(one) for one in found[:1]]

    def _values(self, case: Case, output: Values, *, aliases: Sequence[str]) -> ErrorFigures:
        rewritten = self._exemptions.rewrites_algebra
        return judge_values(case, judge_structure(case, output, aliases=aliases), rewritten=rewritten)


def _never(untouched: int) -> ErrorFigures:
    """Elements that were never written have no error, and are no answer."""
    return ErrorFigures(float("inf"), float("inf"), float("inf"), 0.0, 0.0, None, untouched)
