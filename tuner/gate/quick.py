"""The quick battery, which every variant goes through at the tuned problem's own size.

What it costs on a device is passes over memory and questions that the host waits for; so the reference's answers are
known beforehand, inputs are compared by checksum, and one question is asked for all pieces of an output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.judge import judge_buffers, judge_structure, judge_values
from tunebench.tuner.gate.memory import (
    SENTINELS,
    Bands,
    PoisonedMemory,
    all_equal,
    checksums,
    count_untouched,
    same_bits,
)
from tunebench.tuner.gate.oracle import Case, Oracle
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.kernel import Kernel, Plan, TunableModel
from tunebench.tuner.result import ErrorFigures, Verdict


@dataclass(frozen=True)
class Exemptions:
    """The demands of the gate that a kernel has declared itself exempt from.

    Attributes:
        atomics: two runs may differ in their last bits.
        rewrites_algebra: where the reference is not finite, its result may be not finite in another way.
        bulk_copies: entry points that racecheck is not asked about.
    """

    atomics: bool = False
    rewrites_algebra: bool = False
    bulk_copies: tuple[str, ...] = ()

    @classmethod
    def of(cls, kernel: Kernel) -> Exemptions:
        """What this kernel has declared."""
        return cls(kernel.atomics, kernel.rewrites_algebra, kernel.bulk_copies)


Prepare = Callable[[Sequence[Any]], None]
"""Makes the model ready for a call with these inputs; refuses where that call would not be what is on trial."""


def pinned(model: TunableModel, plan: Plan) -> Prepare:
    """A model that runs a plan."""

    def prepare(inputs: Sequence[Any]) -> None:
        if (problem := model.problem(*inputs)) != plan.problem:
            raise StageRefused(f"the model takes its inputs for another problem: {problem}")
        model.pin(plan)

    return prepare


class QuickGate:
    """Checks variants of one model against one oracle.

    Stages: `degenerate` (these inputs can tell an answer from none), `structure` (shape, dtype, layout, device),
    `bounds` (guard bands intact), `inputs` (inputs and parameters unchanged), `written` (every element, whatever memory
    held), `repeatable` (bitwise, the first result held while the second is made), `values` and `buffers` (against
    float64), `after timing`.

    Args:
        model: carries the reference's weights; its parameters and buffers are put between guard bands.
    """

    def __init__(self, model: nn.Module, oracle: Oracle, exemptions: Exemptions) -> None:
        self._model = model
        self._oracle = oracle
        self._exemptions = exemptions
        self._bands = Bands()
        self._parameters = dict(model.named_parameters())
        self._bands.take_in([*self._parameters.values(), *(buffer for _, buffer in model.named_buffers())])
        self._parameter_sums = checksums(self._parameters.values())

    def check(self, prepare: Prepare, log: StageLog) -> Verdict:
        """The verdict on whatever `prepare` makes ready: cheap stages first; the first refusal ends it.

        Raises:
            LaunchError: the device refused a launch.
        """
        with self._running():
            self._judge_oracle(log)
            output, buffers = self._first_run(prepare, log)
            self._second_run(prepare, log, output)
            first, *others = self._oracle.cases
            self._judge(log, first, lambda: (output, buffers))
            for case in others:
                self._judge(log, case, lambda case=case: self._run(prepare, case, SENTINELS[0])[:2])  # type: ignore[misc]
        return log.verdict(self._oracle.tolerance)

    def check_again(self, prepare: Prepare, verdict: Verdict, timed: object) -> Verdict:
        """The same verdict with one more stage: an output of the timed loop, and a call that comes after it.

        Args:
            timed: what the last timed call on the first case's inputs returned.
        """
        log = StageLog(stages=verdict.stages, errors=verdict.errors)
        first, last = self._oracle.cases[0], self._oracle.cases[-1]
        with self._running(), log.stage("after timing"):
            if self._oracle.steady:
                self._values(replace(first, name="an output of the timed loop"), timed)
            self._values(replace(last, name="a call after timing"), self._run(prepare, last, SENTINELS[0])[0])
        return log.verdict(verdict.tolerance)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        try:
            with torch.no_grad(), contextlib.suppress(StageRefused):  # the log has it
                yield
        finally:
            self._model.load_state_dict(self._oracle.state)

    def _run(self, prepare: Prepare, case: Case, byte: int) -> tuple[object, dict[str, torch.Tensor], bool]:
        """The output, the buffers after the call, and whether every guard band is intact."""
        self._model.load_state_dict(self._oracle.state)
        prepare(case.inputs)
        for bands in (self._bands, self._oracle.bands):
            bands.fill(byte)
        with PoisonedMemory(byte) as memory:
            output = self._model(*case.inputs)
        intact = all(bands.intact for bands in (self._bands, self._oracle.bands, memory.bands))
        return output, dict(self._model.named_buffers()), intact

    def _judge_oracle(self, log: StageLog) -> None:
        with log.stage("degenerate"):
            if self._oracle.degenerate:
                raise StageRefused(
                    f"{', '.join(self._oracle.degenerate)} would pass on all {len(self._oracle.cases)} inputs, so "
                    "nothing can be proven with them: change get_inputs"
                )

    def _first_run(self, prepare: Prepare, log: StageLog) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        case = self._oracle.cases[0]
        with log.stage("structure"):
            got, buffers, intact = self._run(prepare, case, SENTINELS[0])
            output = judge_structure(case, got)
        with log.stage("bounds"):
            if not intact:
                raise StageRefused(f"{case.name}: memory outside of a buffer was written")
        with log.stage("inputs"):
            self._require_unchanged(case)
        return output, {name: buffer.clone() for name, buffer in buffers.items()}

    def _require_unchanged(self, case: Case) -> None:
        names = [f"parameter '{name}'" for name in self._parameters]
        before, after = list(self._parameter_sums), checksums(self._parameters.values())
        if case.input_sums:
            before += case.input_sums
            after += checksums(case.inputs)
            names += [f"input {number + 1}" for number in range(len(case.input_sums))]
        for name, same in zip(names, all_equal(before, after), strict=True):
            if not same:
                raise StageRefused(f"{case.name}: {name} was changed")

    def _second_run(self, prepare: Prepare, log: StageLog, output: torch.Tensor) -> None:
        case = self._oracle.cases[0]
        with log.stage("written"):
            got, _, intact = self._run(prepare, case, SENTINELS[1])
            again = judge_structure(case, got)
            same = same_bits(output, again)
            if not intact:
                raise StageRefused(f"{case.name}: memory outside of a buffer was written")
            # Memory held something else before each run, so that equal outputs are written ones.
            if not same and (untouched := count_untouched([output, again], SENTINELS)):
                raise StageRefused(f"{untouched} of {output.numel()} elements were never written", _never(untouched))
        with log.stage("repeatable"):
            if output.numel() and output.data_ptr() == again.data_ptr():
                raise StageRefused("a later call overwrites the output of an earlier one")
            if not same and not self._exemptions.atomics:
                raise StageRefused(
                    "two runs on the same inputs differ: a race, or a read of memory that was never written"
                )

    def _judge(self, log: StageLog, case: Case, run: Callable[[], tuple[object, dict[str, torch.Tensor]]]) -> None:
        with log.stage(f"values, {case.name}"):
            output, buffers = run()
            log.keep_worst(self._values(case, output))
        with log.stage(f"buffers, {case.name}"):
            judge_buffers(case, buffers)

    def _values(self, case: Case, output: object) -> ErrorFigures:
        kinds_may_differ = self._exemptions.rewrites_algebra
        return judge_values(case, judge_structure(case, output), kinds_may_differ=kinds_may_differ)


def _never(untouched: int) -> ErrorFigures:
    """Elements that were never written have no error, and are no answer."""
    return ErrorFigures(float("inf"), float("inf"), float("inf"), 0.0, 0.0, None, untouched)
