"""Is one file's model really faster? Each file runs in a process of its own; this one judges and times them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch

from tunebench.kernels.runtime.policy import set_policy
from tunebench.studies.checking.compare_report import CompareReport
from tunebench.studies.checking.gpu_mode import in_kernelbench_form, is_gpu_mode
from tunebench.studies.checking.telling import exemptions_of
from tunebench.studies.request.options import Declaration
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.errors import KernelFolderError, UserError
from tunebench.tuner.files import read_text
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.battery import Depth
from tunebench.tuner.gate.boundary.box import Box
from tunebench.tuner.gate.boundary.rounds import Batches, JudgeClock, TimedModel, Truths, calls_of_a_batch
from tunebench.tuner.gate.boundary.sandbox import (
    RemoteCalls,
    RemoteContender,
    RemoteModel,
    RemoteSource,
    Sandbox,
    SandboxError,
    boxed,
)
from tunebench.tuner.gate.boundary.spec import Files
from tunebench.tuner.gate.examine import examine, judge_state, reference_runs
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.judge import judge_structure, judge_values
from tunebench.tuner.gate.memory import SENTINELS
from tunebench.tuner.gate.model import CallOptions, Model
from tunebench.tuner.gate.refusal import Claim
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.gate.values import tensors_in
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy, Work
from tunebench.tuner.reference import REQUIRED
from tunebench.tuner.running_text import names_bound_by
from tunebench.tuner.timing.confirm import confirm, tells
from tunebench.tuner.timing.measure import Control, clocks_for
from tunebench.tuner.timing.statistics import Samples
from tunebench.tuner.users_code import ReportedError, described

MODEL, NEW = "Model", "ModelNew"

_UNKNOWN_OPERATIONS = 1 << 60


@dataclass(frozen=True)
class File:
    """A file by content: it is read once.

    Attributes:
        names: what it defines at its top, as far as one can tell without running it.
    """

    path: Path
    text: str = field(repr=False)
    names: frozenset[str]

    @classmethod
    def read_both(cls, first: Path, second: Path | None, sizes: Mapping[str, int | float]) -> tuple[File, File | None]:
        """Read a file, and the one that it is compared with; see `in_kernelbench_form` for the sizes.

        Raises:
            UserError: one cannot be read, or defines no model.
        """
        one = first, read_text(first)
        if second is None:
            return cls._of(*one), None
        other = second, read_text(second)
        if is_gpu_mode(one[1]):
            other, one = in_kernelbench_form(other, one, sizes, copies=False)  # which would be timed
        return cls._of(*one), cls._of(*other)

    @classmethod
    def _of(cls, path: Path, text: str) -> File:
        names = frozenset(_defined(path, text))
        if not names & {MODEL, NEW}:
            raise UserError(f"{path} defines neither {NEW} nor {MODEL}: KernelBench's form has one of them")
        return cls(path, text, names)

    @property
    def model(self) -> str:
        """The name of its model that is compared."""
        return NEW if NEW in self.names else MODEL

    @property
    def is_reference(self) -> bool:
        """Whether it has all that others are checked against."""
        return self.names >= set(REQUIRED)

    def __str__(self) -> str:
        return f"{self.path}: {self.model}"


def _defined(path: Path, text: str) -> list[str]:
    try:
        tree = ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise KernelFolderError(f"{path}: cannot read it: {error}") from error
    return [name for one in tree.body for name in names_bound_by(one)]


@dataclass(frozen=True)
class FileQuestion:
    """Two files with a `ModelNew` or `Model`; where the second is None, it is the first one's own `Model`.

    Attributes:
        declared: of both, see `CheckRequest`.
        settings: of PyTorch's, in force while both run.
        box: whether they run in boxes.
    """

    first: File
    second: File | None
    device: str | None
    dtype: str | None
    mode: Mode
    declared: tuple[Declaration, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int | float] = field(default_factory=dict)
    box: Box = Box.AUTO

    @property
    def reference(self) -> File:
        """The file whose `Model` both are checked against, and that their inputs come from."""
        return self.first if self.second is None or self.first.is_reference else self.second

    def require_reference(self) -> None:
        """See that there is one.

        Raises:
            UserError: there is none.
        """
        if self.second is None and {MODEL, NEW} - self.first.names:
            raise UserError(f"{self.first.path} does not define both {NEW} and {MODEL}, which 'reference' compares")
        file = self.reference
        if missing := " and no ".join(name for name in REQUIRED if name not in file.names):
            raise UserError(f"{file.path} has no {missing}: both are checked against a reference, and one file has it")


def compare_files(question: FileQuestion) -> CompareReport:
    """Answer a question; this process runs nothing of either file.

    Raises:
        UserError: a file does not run.
    """
    device = find_device(question.device)
    second = f"{question.first.path}: {MODEL}" if question.second is None else str(question.second)
    with ExitStack() as sandboxes, torch.no_grad():
        comparison = _Comparison(question, device, sandboxes)
        report = CompareReport(
            str(question.first),
            second,
            comparison.problem,
            device.name,
            None,
            trusted=False,
            settings=question.settings,
            box=comparison.box,
        )
        try:
            comparison.require_agreement()
            return replace(report, samples_ms=comparison.rounds())
        except _RefusedError as refusal:
            return replace(report, refusal=str(refusal))


class _RefusedError(Exception):
    """One of the two is wrong, and so no faster."""


@dataclass(frozen=True)
class _Side:
    """One of the two.

    Attributes:
        make: a model of it, ready to be called.
        contender: None of the reference, which nothing is asked about.
    """

    label: str
    make: Callable[[], Model]
    contender: RemoteContender | None
    log: StageLog

    def require(self) -> None:
        """Go on only where nothing was refused.

        Raises:
            _RefusedError: something was.
        """
        for stage in self.log.verdict(0.0).stages:
            if not stage.passed:
                raise _RefusedError(f"{self.label} is refused ({stage.name}): {stage.detail}")


class _Comparison:
    """The sandboxes of a comparison, and what the judge asks there.

    Args:
        sandboxes: ends the processes.
    """

    def __init__(self, question: FileQuestion, device: Device, sandboxes: ExitStack) -> None:
        self._question = question
        self._device = device
        self._sandboxes = sandboxes
        files, reference, self.box = boxed(self._files(None), question.box, Sandbox)
        sandbox, self._walls = sandboxes.enter_context(reference), files.walls
        self._running = [sandbox]
        with reference_runs(question.reference.path):
            self._answers = Answers.consult(
                RemoteSource(sandbox, sandbox.open()), question.mode, Accuracy.under(question.settings)
            )

    @property
    def problem(self) -> str:
        """The inputs, for people."""
        return ", ".join(_shape(value) for value in self._answers.oracle.cases[0].inputs)

    def _files(self, file: File | None) -> Files:
        """Return what runs in a sandbox: the reference, and a file with another model."""
        asked, own = self._question, self._question.reference
        other = None if file is None or file is own else (file.path, file.text)
        prepare = partial(set_policy, wait=True)  # what is compared is the kernel, whenever it was built
        where = self._device.torch_device
        original, sizes = (own.path, own.text), dict(asked.sizes)
        files = Files(original, other, sizes, asked.dtype, where, prepare=prepare, settings=asked.settings)
        return files if file is None else replace(files, on_trial=file.model)

    def require_agreement(self) -> None:
        """Where both files have a reference, theirs compute the same.

        Raises:
            _RefusedError: they do not.
        """
        asked = self._question
        for file in (asked.first, asked.second):
            if file is None or file is asked.reference or file.model == MODEL or MODEL not in file.names:
                continue
            contender = self._opened(replace(self._files(file), on_trial=MODEL))
            try:
                model = self._made(contender)
                model.remember()
                for case in self._answers.oracle.cases:
                    model.reset(SENTINELS[0])
                    answer = model.call(case.inputs, CallOptions(seed=case.call_seed))
                    judge_values(case, judge_structure(case, answer.output, aliases=answer.aliases, dense=True))
            except (StageRefused, *FAILURES, SandboxError) as error:
                told = str(error) if isinstance(error, StageRefused | SandboxError) else described(error)
                raise _RefusedError(f"the two references differ: {file.path}: {MODEL}: {told}") from error

    def _opened(self, files: Files) -> RemoteContender:
        sandbox = self._sandboxes.enter_context(Sandbox(replace(files, walls=self._walls).contender))
        self._running.append(sandbox)
        contender = RemoteContender(sandbox, exemptions_of(self._question.declared))
        try:
            contender.open(StageLog(), (ReportedError, SandboxError))
        except StageRefused as error:
            raise _RefusedError(f"{sandbox.spec.path} is refused (import): {error}") from error
        return contender

    def _made(self, contender: RemoteContender) -> RemoteModel:
        return contender.model(self._answers.source, self._question.mode, self._answers.oracle.state)

    def _side(self, file: File | None) -> _Side:
        """A side that was found right for the problem.

        Raises:
            _RefusedError: it is not.
        """
        asked, log, answers = self._question, StageLog(), self._answers
        if file is None or (file is asked.reference and file.model == MODEL):
            make = partial(answers.source.model, asked.mode, answers.oracle.state)
            return _Side(f"{asked.reference.path}: {MODEL}", make, None, log)
        contender = self._opened(self._files(file))
        side = _Side(str(file), partial(self._made, contender), contender, log)
        examine(answers, contender, log, claim=Claim.PROBLEM, depth=Depth.FINALIST)
        side.require()
        return side

    def rounds(self) -> Samples:
        """Interleaved rounds of both sides and a second model of the second's, all of them on the judge's clock.

        Raises:
            _RefusedError: one is wrong, also when it is timed.
        """
        sides = {"first": self._side(self._question.first), "second": self._side(self._question.second)}
        sides["control"] = sides["second"]
        truths = Truths(self._answers)
        timed = {name: self._timed(side, truths) for name, side in sides.items()}
        size = sum(tensor.nbytes for tensor in tensors_in(truths.bases[0]))
        try:
            count = calls_of_a_batch(list(timed.values()), size, self._device)
            batches = Batches(count, truths.smallest_scale())
            for model in timed.values():
                model.begin(batches, count)
            clock = JudgeClock(RemoteCalls(cast(RemoteModel, self._answers.original), truths.bases, count), count)
            control = Control(self._device, clocks_for(self._device, Work(size, _UNKNOWN_OPERATIONS))[-1])
            calls = {name: model.take for name, model in timed.items()}
            samples = confirm(
                calls, "second", calls.pop("control"), clock, control, is_decided=tells("first", "second")
            )
            for model in timed.values():
                model.end(clock.overhead_ms)
        except StageRefused:
            pass  # the side's log has it
        for side in sides.values():
            if side.contender is not None and side.log.verdict(0.0).passed:
                judge_state(self._answers, side.contender, side.log)
            side.require()
        return samples

    def _timed(self, side: _Side, truths: Truths) -> TimedModel:
        exemptions = Exemptions() if side.contender is None else side.contender.exemptions
        model = cast(RemoteModel, side.make())
        others = [sandbox for sandbox in self._running if sandbox is not model.sandbox]
        return TimedModel(model, truths, exemptions, side.log, others)


def _shape(value: object) -> str:
    tensors = [
        f"{'×'.join(map(str, one.shape))} {str(one.dtype).removeprefix('torch.')}" for one in tensors_in([value])
    ]
    return ", ".join(tensors) or repr(value)
