"""The gate alone: a configuration of a kernel, or any file's `ModelNew`, against its reference, in its own process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from torch import nn

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import is_kernel_file, load_model
from tunebench.tuner.build import CompilerName
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.compile.for_gpu import ARCHITECTURE
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device, DeviceKind, any_gpu, find_device
from tunebench.tuner.errors import CompileError, CompilerMissingError, KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.files import path_named
from tunebench.tuner.gate.battery import Depth, run_battery
from tunebench.tuner.gate.contender import Contender, KernelContender, ModuleContender
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Answers
from tunebench.tuner.gate.oracle import consult_reference
from tunebench.tuner.gate.quick import QuickGate
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.isolation import IsolationError, report, run_isolated, start_forkserver
from tunebench.tuner.kernel import Kernel, Mode, ModelFactory, TunableModel, prepare_model
from tunebench.tuner.reference import Reference, load_candidate, load_reference
from tunebench.tuner.result import Stage, Verdict
from tunebench.tuner.users_code import described

SEEDS = (1, 2)
SECONDS = 600.0
_FILE_MODES = (Mode.EVAL, Mode.TRAIN)


@dataclass(frozen=True)
class CheckRequest:
    """What to check.

    Attributes:
        target: a shipped kernel's name, a kernel folder, or a `.py` file that defines `ModelNew`.
        reference: the file with `Model`, `get_inputs` and `get_init_inputs`, where the target does not define them.
        configuration: values of a kernel's tunables in place of the default's.
        sizes: numeric constants of the reference's file to change.
        dtype: what models and inputs are converted to; None leaves them as the reference's file makes them.
        modes: None for every mode of a kernel; for a file, train mode, as KernelBench runs it.
        architecture: of a GPU that a kernel has to build for, such as `sm_90`, beside running where it is checked; None
            for that of the CPU's kernels only, where NVRTC is installed.
        seconds: a check that takes longer is ended, and refused.
    """

    target: str
    reference: str | None = None
    configuration: Mapping[str, Value] = field(default_factory=dict)
    sizes: Mapping[str, int | float] = field(default_factory=dict)
    dtype: str | None = None
    modes: Sequence[str] | None = None
    device: str | None = None
    compiler: CompilerName | None = None
    architecture: str | None = None
    seconds: float = SECONDS


@dataclass(frozen=True)
class CheckReport:
    """The verdict on one target in one mode.

    Attributes:
        configuration: of a kernel; None for a file.
    """

    target: str
    mode: Mode
    device: Device
    configuration: Mapping[str, Value] | None
    verdict: Verdict


@dataclass(frozen=True)
class _Subject:
    """A request whose every name has been found."""

    reference: Reference
    device: Device
    modes: Sequence[Mode]
    factory: Callable[..., nn.Module]
    kernel: Kernel | None
    compiler: Compiler | None


Show = Callable[[Mode, Stage], None]
"""Called with the mode and each stage as it ends."""


def check(request: CheckRequest, show: Show = lambda _mode, _stage: None) -> list[CheckReport]:
    """Run the whole gate in a process of its own, one report for each mode; a crash is a refusal.

    Raises:
        UserError: the request names what is not there, or the reference cannot be run.
    """
    modes, device = _look(request)
    start_forkserver([__name__])
    return [_check_mode(request, mode, device, show) for mode in modes]


def _look(request: CheckRequest) -> tuple[Sequence[Mode], Device]:
    """The modes and the device, found without running anybody's file."""
    is_file = _is_submission(request.target)
    if request.reference is not None and not is_file:
        raise UserError("--reference is for files: a kernel has its own reference.py")
    for name in (request.target, request.reference) if is_file else ():
        if name is not None and not ((path := path_named(name)) and path.is_file()):
            raise UserError(f"{name}: cannot read: there is no such file; name a Python file with a model")
    legal = _FILE_MODES if is_file else load_model(request.target).kernel.modes
    if request.architecture is not None:
        any_gpu(request.architecture)
    for mode in request.modes or ():
        if mode not in legal:
            raise UnknownNameError(f"mode of {request.target}", mode, legal)
    modes = [Mode(mode) for mode in request.modes or ()]
    return modes or ((Mode.TRAIN,) if is_file else legal), find_device(request.device)


def _check_mode(request: CheckRequest, mode: Mode, device: Device, show: Show) -> CheckReport:
    stages: list[Stage] = []
    configuration: Mapping[str, Value] | None = None
    started = time.perf_counter()

    def listen(message: Stage | Mapping[str, Value]) -> None:
        nonlocal configuration
        if isinstance(message, Stage):
            stages.append(message)
            show(mode, message)
        else:
            configuration = message

    try:
        verdict = run_isolated(request.seconds, _verdict, request, mode, listen=listen)
    except IsolationError as error:
        after = f"after stage '{stages[-1].name}'" if stages else "before the first stage ended"
        listen(Stage("process", False, time.perf_counter() - started, f"{error}, {after}"))
        reason = next(stage.detail for stage in stages if not stage.passed)
        verdict = Verdict(False, tuple(stages), 0.0, None, reason)
    return CheckReport(request.target, mode, device, configuration, verdict)


def _is_submission(target: str) -> bool:
    """Whether this is a file with any model in it, and not a kernel with configurations."""
    return Path(target).suffix == ".py" and not is_kernel_file(target)


# What follows runs in the process.


def _resolve(request: CheckRequest) -> _Subject:
    device = find_device(request.device)
    path = Path(request.target)
    if _is_submission(request.target):
        if request.configuration:
            raise UserError(f"{path} has no configuration: --config is for kernels")
        own = request.reference is None
        reference = load_reference(Path(request.reference or path), request.sizes, request.dtype)
        factory = reference.candidate if own else load_candidate(path)
        if factory is None:
            raise KernelFolderError(f"{path}: no ModelNew; define it there, or name its reference with --reference")
        return _Subject(reference, device, _FILE_MODES, factory, None, None)
    model = load_model(request.target)
    model.kernel.space.fix(request.configuration)  # refuses what is no value of it before anything that takes time
    reference = model.kernel.reference(request.sizes, request.dtype)
    compiler = compiler_for(device, request.compiler)
    return _Subject(reference, device, model.kernel.modes, model, model.kernel, compiler)


def _verdict(request: CheckRequest, mode: Mode) -> Verdict:
    set_policy(wait=True)  # what is checked is the kernel, whenever it was built
    subject = _resolve(request)
    where = subject.device.torch_device
    log = StageLog(report)
    try:
        original = prepare_model(subject.reference, mode, where)
        oracle = consult_reference(subject.reference, original, where, SEEDS)
    except FAILURES as error:
        raise KernelFolderError(f"{subject.reference.path}: the reference does not run: {described(error)}") from error
    try:
        with log.stage("model"):
            model = _made(subject, original, mode)
            contender = _contender(subject, request, model, oracle.cases[0].inputs)
        prepare = _preparation(contender, model)
        with log.stage("build"):
            prepare(oracle.cases[0].inputs)
        if isinstance(contender, KernelContender):
            _build_for_gpu(contender, request, subject.device, model, oracle.cases[0].inputs, log)
        verdict = QuickGate(model, oracle, contender.exemptions).check(prepare, log)
        if verdict.passed:
            answers = Answers(subject.reference, oracle, where, mode)
            run_battery(answers, contender, log, Depth.EVERYTHING, keep_going=True)
    except StageRefused:
        pass  # the log has it
    except FAILURES as error:
        with contextlib.suppress(StageRefused), log.stage("run"):
            raise StageRefused(described(error)) from error
    return log.verdict(oracle.tolerance)


def _build_for_gpu(
    contender: KernelContender,
    request: CheckRequest,
    device: Device,
    model: nn.Module,
    inputs: Sequence[object],
    log: StageLog,
) -> None:
    """Refuse what a GPU's compiler refuses: g++ takes headers and calls that NVRTC has not."""
    architecture = request.architecture or (ARCHITECTURE if device.kind is DeviceKind.CPU else None)
    if architecture is None:
        return
    with log.stage("GPU build") as details:
        try:
            refusal = contender.refused_for(model, inputs, architecture)
        except CompilerMissingError as error:
            if request.architecture is not None:
                raise
            details.append(f"passed over: {error}")
            return
        if refusal is not None:
            raise StageRefused(f"for {architecture}: {refusal}")
        details.append(f"NVRTC builds it for {architecture}")


def _made(subject: _Subject, original: nn.Module, mode: Mode) -> nn.Module:
    where = subject.device.torch_device
    try:
        return prepare_model(subject.reference, mode, where, subject.factory, original.state_dict())
    except FAILURES as error:
        raise StageRefused(f"it cannot be made like the reference: {described(error)}") from error


def _contender(subject: _Subject, request: CheckRequest, model: nn.Module, inputs: Sequence[object]) -> Contender:
    if subject.kernel is None or subject.compiler is None:
        return ModuleContender(subject.factory)
    kernel = subject.kernel
    tuned = cast(TunableModel, model)
    problem = tuned.problem(*inputs)
    if problem is None:
        raise UserError(f"kernel '{kernel.name}' cannot serve its reference's inputs: {tuned.reason}")
    valid = kernel.space.fix(request.configuration).enumerate(problem, subject.device)
    configuration = valid[valid.default]
    report(dict(configuration))
    return KernelContender(kernel, cast(ModelFactory, subject.factory), configuration, subject.compiler)


def _preparation(contender: Contender, model: nn.Module) -> Callable[[Sequence[object]], None]:
    def prepare(inputs: Sequence[object]) -> None:
        try:
            reason = contender.ready(model, inputs)
        except CompileError as error:
            raise StageRefused(f"it does not compile: {error}") from error
        if reason is not None:
            raise StageRefused(reason)

    return prepare
