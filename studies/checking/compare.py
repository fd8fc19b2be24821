"""Is one really faster? Two configurations of a kernel, two files with models, or one of them and its reference.

The comparison runs in a process of its own, which configurations may crash or hang; files run in further ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tunebench.db.connection.database import open_database
from tunebench.db.queries.one_trial import TrialDetails, trial_details
from tunebench.kernels.runtime.registry import is_kernel_file, load_model
from tunebench.studies.checking.compare_files import File, FileQuestion, compare_files
from tunebench.studies.checking.compare_report import CompareReport
from tunebench.studies.request.options import Declaration
from tunebench.studies.tuning.resolved import make_evaluator, resolve
from tunebench.studies.tuning.study_file import StudyRequest, make_request
from tunebench.studies.tuning.targets import find_target, kernel_of, sizes_of
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.errors import CompileError, UserError, WorkerError
from tunebench.tuner.files import path_named
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.gate.boundary.box import Box
from tunebench.tuner.gate.boundary.sandbox import SandboxError
from tunebench.tuner.isolation import DeathError, run_isolated
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Problem, told_apart
from tunebench.tuner.reference import require_dtype
from tunebench.tuner.settings import Setting, in_force, parse_settings, require_settings, settings_of
from tunebench.tuner.study.evaluate import Finalist, LocalEvaluator
from tunebench.tuner.timing.confirm import most_seconds

REFERENCE = "reference"
DEFAULT = "default"

SECONDS = 600.0
"""The longest that a comparison may take, beside its rounds."""

_COMPARED = {"sizes", "dtype", "device", "compiler", "settings"}
"""Keys of a study file that matter for a comparison, in addition to its kernel and modes."""


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


Side = int | str | Path | Mapping[str, Value]
"""A side to compare: a trial's number, tunables (the rest as in the default), `default`, `reference`, a .py file."""


def question_of(
    first: Side,
    second: Side,
    *,
    kernel: str | None = None,
    options: Mapping[str, Any] | None = None,
    database: str | Path | None = None,
) -> KernelQuestion | FileQuestion:
    """The question whether the first is faster than the second.

    Args:
        kernel: its name or folder, or a study file; None where a trial brings it.
        options: those of `CompareRequest` that were given; what is not is a trial's, and settings are else this
            process's.
        database: where trials are; None for the default.

    Raises:
        UserError: the two cannot be compared.
    """
    options = dict(options or {})
    mode, declared, box = options.pop("mode", None), options.pop("declared", ()), options.pop("box", Box.AUTO)
    if any(str(side).endswith(".py") for side in (first, second) if isinstance(side, str | Path)):
        return replace(_about_files(first, second, mode, options, declared), box=Box(box))
    if declared:
        raise UserError(f"--{declared[0]} is for files: a kernel declares it in Kernel.declare")
    if kernel is not None and Path(kernel).suffix == ".toml":
        request = find_target(kernel).request
        kernel, mode = request.kernel, mode or next(iter(request.modes or ()), None)
        options = {**request.model_dump(include=_COMPARED, exclude_unset=True), **options}
    sides = [_named_side(side, database) for side in (first, second)]
    return _about_kernel(sides, kernel, mode, options)


def _about_files(
    first: Side, second: Side, mode: str | None, options: Mapping[str, object], declared: Sequence[Declaration]
) -> FileQuestion:
    for side, others in ((first, ""), (second, ", or with 'reference'")):
        path = path_named(side) if isinstance(side, str | Path) else None
        is_file = path is not None and path.is_file()
        if not is_file and not (side == REFERENCE and others):
            raise UserError(f"'{side}' is not a file: a file is compared with another file{others}")
        if is_kernel_file(str(side)):
            raise UserError(f"{side} is a kernel: 'tunebench compare default reference {side}' compares it")
    if mode not in (None, Mode.EVAL, Mode.TRAIN):
        raise UserError(f"mode '{mode}' is neither eval nor train")
    device, dtype = (None if (given := options.get(name)) is None else str(given) for name in ("device", "dtype"))
    dtype = require_dtype(dtype)
    kind = find_device(device).torch_device.type
    given = options.get("settings")
    settings = in_force(Setting, kind) if given is None else parse_settings(cast(Mapping[str, object], given))
    require_settings(settings, kind)
    sizes = cast(Mapping[str, int | float], options.get("sizes") or {})
    question = FileQuestion(
        *File.read_both(Path(str(first)), None if second == REFERENCE else Path(str(second)), sizes),
        device,
        dtype,
        Mode(mode or Mode.EVAL),
        tuple(declared),
        settings,
        sizes,
    )
    question.require_reference()
    return question


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
    (chosen,) = declared.modes_named([(*modes, *declared.modes)[0] if mode is None else mode])
    dtypes = [side.problem.dtype for side in sides if side.problem and side.problem.dtype in declared.dtypes]
    asked: dict[str, object] = {"kernel": target, "dtype": next(iter(dtypes), None), **options}
    if asked.get("settings") is None:
        measured = [settings_of(side.problem.options) for side in sides if side.problem]
        device = find_device(cast(str | None, asked.get("device")))
        asked["settings"] = measured[0] if measured else in_force(Setting, device.torch_device.type)
    if details:
        asked["objective"] = details[0].row.problem.objective
    if details and "sizes" not in asked:
        asked["sizes"] = sizes_of(target, details[0].row.problem)
    return KernelQuestion(make_request(asked, target), chosen, first, second)


def _named_side(side: Side, database: str | Path | None) -> tuple[TrialDetails | None, KernelSide]:
    """Return the trial that a side is, None where it is none; and the side."""
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
    seconds = SECONDS + most_seconds()
    start_forkserver([__name__])
    named = question.device if isinstance(question, FileQuestion) else question.request.device
    try:
        with alone_on(find_device(named), "tunebench compare"):
            if isinstance(question, FileQuestion):
                return run_isolated(seconds, compare_files, question, has_children=True)
            return run_isolated(seconds, _compare_configurations, question)
    except (DeathError, SandboxError) as death:
        raise WorkerError(f"the comparison came to no end: {death}") from death


# What follows runs in the process.


def _compare_configurations(question: KernelQuestion) -> CompareReport:
    evaluator = make_evaluator(question.request, question.mode)
    asked = (question.first, question.second)
    sides = [finalist_of(question.request, side, evaluator) for side in asked]
    first, second = (
        side.label if built is None or side.problem else f"{side.label}: {built.configuration}"
        for side, built in zip(asked, sides, strict=True)
    )
    settings = question.request.settings or {}
    duel = CompareReport(first, second, str(evaluator.problem), evaluator.device.name, None, settings=settings)
    for label, built in zip((first, second), sides, strict=True):
        if built is not None and not (result := evaluator.evaluate(*built)).status.timed:
            refusal = f"{label} is refused ({result.status}): {result.message.splitlines()[0]}"
            return replace(duel, refusal=refusal)
    return replace(duel, samples_ms=evaluator.duel(*sides))


def finalist_of(request: StudyRequest, side: KernelSide, evaluator: LocalEvaluator) -> Finalist | None:
    """Return a side's configuration with its build; None for the reference.

    Raises:
        UserError: it was measured for another problem, is not valid here, or does not compile.
    """
    if side.problem is not None and side.problem != evaluator.problem:
        measured, here = told_apart([("", side.problem), ("", evaluator.problem)])
        raise UserError(
            f"'{side.label}' was measured for {measured}, and this comparison is for {here}: "
            "change the sizes with --size, the dtype with --dtype, the mode with --mode, or what eager may do with "
            "--setting"
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
        return Finalist(configuration, BuildCache().build(resolved.compiler, variant))
    except CompileError as error:
        raise UserError(f"'{side.label}' does not compile: {error}") from error
