"""Is one really faster? Two configurations of a kernel, two files with models, or one of them and its reference.

The comparison runs in a process of its own, which what is compared may crash or hang.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tunebench.db.connection.database import open_database
from tunebench.db.queries.one_trial import TrialDetails, trial_details
from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.study_file import StudyRequest, make_request
from tunebench.studies.targets import find_target, kernel_of, sizes_of
from tunebench.studies.tune import make_evaluator, resolve
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.errors import CompileError, TunebenchError, UnknownNameError, UserError, WorkerError
from tunebench.tuner.files import path_named
from tunebench.tuner.gate.tolerance import AGREEMENT, AGREEMENT_OTHERWISE
from tunebench.tuner.isolation import DeathError, run_isolated, start_forkserver
from tunebench.tuner.kernel import Mode, prepare_model
from tunebench.tuner.problem import Problem, Work
from tunebench.tuner.reference import Reference, require_dtype, run_file
from tunebench.tuner.result import Decision, Ratio
from tunebench.tuner.study.evaluate import Finalist, LocalEvaluator
from tunebench.tuner.timing.confirm import confirm
from tunebench.tuner.timing.measure import Call, Control, clocks_for, pick_clock
from tunebench.tuner.timing.statistics import Samples, control_ratio, medians_of, speedup

REFERENCE = "reference"
DEFAULT = "default"

SECONDS = 600.0
"""The longest that a comparison may take."""

_COMPARED = {"sizes", "dtype", "device", "compiler"}
"""What of a study file matters for a comparison, beside its kernel and modes."""

_UNKNOWN_OPERATIONS = 1 << 60


@dataclass(frozen=True)
class KernelSide:
    """A configuration of a kernel, or its reference.

    Attributes:
        label: as it was asked for.
        values: tunables; those left out are as in the default. None for the reference.
        problem: a trial's, which the sizes have to make; None where any will do.
    """

    label: str
    values: Mapping[str, Value] | None
    problem: Problem | None = None


@dataclass(frozen=True)
class KernelQuestion:
    """Two configurations of one kernel, or one and the reference."""

    request: StudyRequest
    mode: Mode
    first: KernelSide
    second: KernelSide


@dataclass(frozen=True)
class FileQuestion:
    """Two files with a `ModelNew` or `Model`; where the second is None, it is the first one's own `Model`."""

    first: Path
    second: Path | None
    device: str | None
    dtype: str | None
    mode: Mode


@dataclass(frozen=True)
class CompareReport:
    """What a comparison found.

    Attributes:
        first, second: what was compared, for people.
        problem, device: what it was compared for, and where.
        samples_ms: by `first`, `second` and `control`, the second copy of the second; None where one was refused.
        refusal: why there is nothing to compare: one of them is wrong or fails.
    """

    first: str
    second: str
    problem: str
    device: str
    samples_ms: Samples | None
    refusal: str = ""

    @property
    def ratio(self) -> Ratio | None:
        """How many times faster the first is than the second."""
        return speedup(self.samples_ms["first"], self.samples_ms["second"]) if self.samples_ms else None

    @property
    def control(self) -> Ratio | None:
        """How much faster the second copy of the second seemed."""
        return control_ratio(self.samples_ms, "second") if self.samples_ms else None

    @property
    def medians_ms(self) -> Mapping[str, float]:
        """By contender."""
        return medians_of(self.samples_ms or {})

    @property
    def decision(self) -> Decision | None:
        """Whether the first is faster; a tie where the rounds told equals apart, None where one was refused."""
        if self.ratio is None or self.control is None:
            return None
        return self.ratio.decision if self.control.decision is Decision.TIE else Decision.TIE


Side = int | str | Path | Mapping[str, Value]
"""What can be compared: a trial's number, tunables (the rest as in the default), `default`, `reference`, a .py file."""


def question_of(
    first: Side,
    second: Side,
    *,
    kernel: str | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    database: str | Path | None = None,
) -> KernelQuestion | FileQuestion:
    """The question whether the first is faster than the second.

    Args:
        kernel: its name or folder, or a study file; None where a trial brings it.
        options: keys of `StudyRequest`: the device, the compiler, sizes and the dtype, which are else a trial's.
        database: where trials are; None for the default.

    Raises:
        UserError: the two cannot be compared.
    """
    options = options or {}
    if any(str(side).endswith(".py") for side in (first, second) if isinstance(side, str | Path)):
        return _about_files(first, second, mode, options)
    if kernel is not None and Path(kernel).suffix == ".toml":
        request = find_target(kernel).request
        kernel, mode = request.kernel, mode or next(iter(request.modes or ()), None)
        options = {**request.model_dump(include=_COMPARED, exclude_unset=True), **options}
    sides = [_named_side(side, database) for side in (first, second)]
    return _about_kernel(sides, kernel, mode, options)


def _about_files(first: Side, second: Side, mode: str | None, options: Mapping[str, object]) -> FileQuestion:
    for side, others in ((first, ""), (second, ", or with 'reference'")):
        path = path_named(side) if isinstance(side, str | Path) else None
        is_file = path is not None and path.is_file()
        if not is_file and not (side == REFERENCE and others):
            raise UserError(f"'{side}' is not a file: a file is compared with another file{others}")
    if mode not in (None, Mode.EVAL, Mode.TRAIN):
        raise UserError(f"mode '{mode}' is neither eval nor train")
    device, dtype = (None if (given := options.get(name)) is None else str(given) for name in ("device", "dtype"))
    return FileQuestion(
        Path(str(first)),
        None if second == REFERENCE else Path(str(second)),
        device,
        require_dtype(dtype),
        Mode(mode or Mode.EVAL),
    )


def _about_kernel(
    named: Sequence[tuple[TrialDetails | None, KernelSide]],
    kernel: str | None,
    mode: str | None,
    options: Mapping[str, object],
) -> KernelQuestion:
    first, second = sides = [side for _, side in named]
    details = [one for one, _ in named if one is not None]
    recorded = sorted({one.row.kernel for one in details})
    if kernel is None and len(recorded) != 1:
        why = f"they are of {' and '.join(recorded)}" if recorded else "name the kernel behind them"
        raise UserError(f"'{first.label}' and '{second.label}' cannot be compared: {why}")
    target = kernel or kernel_of(details[0])
    declared = load_model(target).kernel
    if any(name != declared.name for name in recorded):
        raise UserError(f"a trial of {recorded[0]} cannot be compared as one of {declared.name}")
    modes = [side.problem.options["mode"] for side in sides if side.problem and "mode" in side.problem.options]
    chosen = (*modes, *declared.modes)[0] if mode is None else mode
    if chosen not in declared.modes:
        raise UnknownNameError(f"mode of kernel '{declared.name}'", chosen, declared.modes)
    dtypes = [side.problem.dtype for side in sides if side.problem and side.problem.dtype in declared.dtypes]
    asked: dict[str, object] = {"kernel": target, "dtype": next(iter(dtypes), None), **options}
    if details and "sizes" not in asked:
        asked["sizes"] = sizes_of(target, details[0].row.problem)
    return KernelQuestion(make_request(asked, target), Mode(chosen), first, second)


def _named_side(side: Side, database: str | Path | None) -> tuple[TrialDetails | None, KernelSide]:
    """What is compared, and the trial that it is."""
    if isinstance(side, int):
        with open_database(database, read_only=True) as opened:
            details = trial_details(opened, side)
        row = details.row
        return details, KernelSide(f"trial {side}: {row.configuration}", dict(row.configuration), row.problem)
    if isinstance(side, Mapping):
        return None, KernelSide(",".join(f"{name}={value}" for name, value in side.items()), side)
    if side not in (DEFAULT, REFERENCE):
        raise UserError(
            f"'{side}' cannot be compared: give a trial's number, tunables, default, reference or a .py file"
        )
    return None, KernelSide(str(side), {} if side == DEFAULT else None)


def compare(question: KernelQuestion | FileQuestion) -> CompareReport:
    """Answer a question.

    Raises:
        UserError: the question was wrong.
        WorkerError: what was compared killed its process, or hung.
    """
    start_forkserver([__name__])
    function: Callable[..., CompareReport] = (
        _compare_files if isinstance(question, FileQuestion) else _compare_configurations
    )
    named = question.device if isinstance(question, FileQuestion) else question.request.device
    try:
        with alone_on(find_device(named), "tunebench compare"):
            return run_isolated(SECONDS, function, question)
    except DeathError as death:
        raise WorkerError(f"the comparison came to no end: {death}") from death


# What follows runs in the process.


def _compare_configurations(question: KernelQuestion) -> CompareReport:
    evaluator = make_evaluator(question.request, question.mode)
    asked = (question.first, question.second)
    sides = [_finalist(question.request, side, evaluator) for side in asked]
    first, second = (
        side.label if built is None or side.problem else f"{side.label}: {built[0]}"
        for side, built in zip(asked, sides, strict=True)
    )
    duel = CompareReport(first, second, str(evaluator.problem), evaluator.device.name, None)
    for label, built in zip((first, second), sides, strict=True):
        if built is not None and not (result := evaluator.evaluate(*built)).status.timed:
            refusal = f"{label} is refused ({result.status}): {result.message.splitlines()[0]}"
            return replace(duel, refusal=refusal)
    return replace(duel, samples_ms=evaluator.duel(*sides))


def _finalist(request: StudyRequest, side: KernelSide, evaluator: LocalEvaluator) -> Finalist | None:
    if side.problem is not None and side.problem != evaluator.problem:
        raise UserError(
            f"'{side.label}' was measured for {side.problem}, and this comparison is for {evaluator.problem}: "
            "change the sizes with --size, the dtype with --dtype, or the mode with --mode"
        )
    if side.values is None:
        return None
    resolved = resolve(request)
    try:
        configuration = resolved.space.choose(side.values, evaluator.problem, evaluator.device)
    except UserError as error:
        raise UserError(f"'{side.label}': {error}") from error
    variant = resolved.kernel.variant(configuration, evaluator.problem, evaluator.device.architecture)
    try:
        return configuration, BuildCache().build(resolved.compiler, variant)
    except CompileError as error:
        raise UserError(f"'{side.label}' does not compile: {error}") from error


def _compare_files(question: FileQuestion) -> CompareReport:
    set_policy(wait=True)  # what is compared is the kernel, whenever it was built
    device = find_device(question.device)
    first = _run(question.first)
    second = first if question.second is None else _run(question.second)
    names = _name(first), _name(second) if question.second else "Model"
    if question.second is None and not (hasattr(first, "ModelNew") and hasattr(first, "Model")):
        raise UserError(f"{question.first} does not define both ModelNew and Model, which 'reference' compares")
    source = replace(_source(question.first, first), dtype=question.dtype)
    labels = f"{question.first}: {names[0]}", f"{question.second or question.first}: {names[1]}"
    try:
        factories = [getattr(module, name) for module, name in zip((first, second), names, strict=True)]
        models = [prepare_model(source, question.mode, device.torch_device, factory) for factory in factories]
        _share_weights(models)
        inputs = source.make_inputs(1, device.torch_device)
        calls = [_call(model, inputs) for model in models]
        duel = CompareReport(*labels, ", ".join(_shape(value) for value in inputs), device.name, None)
        with torch.no_grad():
            outputs = [_tensors(call()) for call in calls]
            apart, allowed = _apart(*outputs)
            if not apart <= allowed:
                return replace(duel, refusal=f"their outputs lie {apart:.2g} apart, where {allowed:.0e} is allowed")
            touched = (*_tensors(inputs), *models[1].parameters(), *models[1].buffers(), *outputs[1])
            work = Work(sum(tensor.nbytes for tensor in touched), _UNKNOWN_OPERATIONS)
            named = {"first": calls[0], "second": calls[1]}
            twin = _call(models[1], inputs)
            clock = pick_clock(clocks_for(device, work), [*calls, twin])
            return replace(duel, samples_ms=confirm(named, "second", twin, clock, Control(device, clock)))
    except TunebenchError:
        raise
    except Exception as error:
        raise UserError(f"{labels[0]} against {labels[1]}: {type(error).__name__}: {_line(error)}") from error


def _run(path: Path) -> types.ModuleType:
    """The names that a file defines; a model must be among them."""
    module = run_file(path)
    if not (hasattr(module, "ModelNew") or hasattr(module, "Model")):
        raise UserError(f"{path} defines neither ModelNew nor Model: KernelBench's form has one of them")
    return module


def _name(module: types.ModuleType) -> str:
    return "ModelNew" if hasattr(module, "ModelNew") else "Model"


def _source(path: Path, module: types.ModuleType) -> Reference:
    """The functions that make parameters and inputs for both models: those of the first file."""
    if missing := [name for name in ("get_inputs", "get_init_inputs") if not hasattr(module, name)]:
        raise UserError(f"the first file has no {' and no '.join(missing)}: both get their inputs from there")
    return Reference(path, "", getattr(module, _name(module)), module.get_inputs, module.get_init_inputs, {})


def _share_weights(models: Sequence[nn.Module]) -> None:
    """The second one's weights for both, where their names are the same; else the same seed has to do."""
    state = models[1].state_dict()
    if state.keys() == models[0].state_dict().keys():
        models[0].load_state_dict(state)


def _call(model: nn.Module, inputs: Sequence[Any]) -> Call:
    return lambda: model(*inputs)


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for one in value for tensor in _tensors(one)] if isinstance(value, list | tuple) else []


def _apart(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> tuple[float, float]:
    """How far the outputs differ, and how far they may."""
    if [(one.shape, one.dtype) for one in first] != [(one.shape, one.dtype) for one in second]:
        return float("inf"), AGREEMENT_OTHERWISE
    worst, allowed = 0.0, AGREEMENT_OTHERWISE
    for one, other in zip(first, second, strict=True):
        apart = float((one.double() - other.double()).norm())
        worst = max(worst, apart / (float(other.double().norm()) or 1.0)) if apart == apart else apart  # noqa: PLR0124
        allowed = max(allowed, AGREEMENT.get(other.dtype, allowed))
    return worst, allowed


def _shape(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{'×'.join(map(str, value.shape))} {str(value.dtype).removeprefix('torch.')}"
    return repr(value)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
