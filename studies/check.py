"""The gate alone: a configuration of a kernel, or any file's `ModelNew`, against its reference, in its own process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from torch import nn

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import is_kernel_file, load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.targets import find_target
from tunebench.tuner.build import CompilerName
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.compile.for_gpu import ARCHITECTURE
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device, DeviceKind, any_gpu, find_device
from tunebench.tuner.errors import CompileError, CompilerMissingError, KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.files import path_named
from tunebench.tuner.gate.battery import Depth, claim_of, run_battery
from tunebench.tuner.gate.boundary.contents import Files, OfCandidate, OfReference
from tunebench.tuner.gate.boundary.judgement import judge_contender
from tunebench.tuner.gate.boundary.room import RemoteContender, RemoteSource, Room, RoomError
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Answers
from tunebench.tuner.gate.oracle import consult_reference
from tunebench.tuner.gate.party import LocalParty
from tunebench.tuner.gate.quick import QuickGate
from tunebench.tuner.gate.refusal import Claim
from tunebench.tuner.gate.sources import LocalSource
from tunebench.tuner.gate.stage_log import Listener, StageLog, StageRefused
from tunebench.tuner.isolation import TRACER, IsolationError, report, run_isolated, start_forkserver
from tunebench.tuner.kernel import Mode, ModelFactory, TunableModel, prepare_model
from tunebench.tuner.reference import read_text, require_dtype
from tunebench.tuner.result import Stage, Verdict
from tunebench.tuner.users_code import ToldError, described, placed

SEEDS = (1, 2)
SECONDS = 600.0
_FILE_MODES = (Mode.EVAL, Mode.TRAIN)


@dataclass(frozen=True)
class CheckRequest:
    """What to check.

    Attributes:
        target: a shipped kernel's name, a kernel folder, a study file, a trial's number, or a `.py` file that defines
            `ModelNew`. What a study file or a trial says stands where nothing is said here.
        reference: the file with `Model`, `get_inputs` and `get_init_inputs`, where the target does not define them.
        configuration: values of a kernel's tunables in place of the default's.
        sizes: numeric constants of the reference's file to change.
        dtype: what models and inputs are converted to; None leaves them as the reference's file makes them.
        modes: None for every mode of a kernel; for a file, train mode, as KernelBench runs it.
        architecture: of a GPU that a kernel has to build for, such as `sm_90`, beside running where it is checked; None
            for that of the CPU's kernels only, where NVRTC is installed.
        seconds: a check that takes longer is ended, and refused.
        require: what has to hold for the check to be passed; None for `problem` of a file and `drop-in` of a kernel.
        database: where trials are; None for the default.
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
    require: Claim | None = None
    database: str | Path | None = None


@dataclass(frozen=True)
class CheckReport:
    """The verdict on one target in one mode.

    Attributes:
        configuration: of a kernel; None for a file.
        require: what has to hold for `passed`.
        verdict: on everything that was asked.
    """

    target: str
    mode: Mode
    device: Device
    configuration: Mapping[str, Value] | None
    require: Claim
    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Whether what is required holds."""
        return self.holds(self.require)

    def holds(self, claim: Claim) -> bool:
        """Whether it is right for the problem; or that, and whatever else a drop-in has to be."""
        if claim is Claim.DROP_IN:
            return self.verdict.passed
        return not any(claim_of(stage.name) is Claim.PROBLEM for stage in self.refusals)

    @property
    def refusals(self) -> list[Stage]:
        """The stages that were refused."""
        return [stage for stage in self.verdict.stages if not stage.passed]


Show = Callable[[Mode, Stage], None]
"""Called with the mode and each stage as it ends."""


def check(request: CheckRequest, show: Show = lambda _mode, _stage: None) -> list[CheckReport]:
    """Run the whole gate in a process of its own, one report for each mode; a crash is a refusal.

    Raises:
        UserError: the request names what is not there, or the reference cannot be run.
    """
    request = _completed(request)
    modes, device = _look(request)
    submission = _read(request, device) if _is_submission(request.target) else None
    start_forkserver([__name__, TRACER])
    return [_check_mode(request, submission, mode, device, show) for mode in modes]


def _completed(request: CheckRequest) -> CheckRequest:
    """The request with what a study file or a trial says."""
    if _is_submission(request.target):
        return request
    found = find_target(request.target, request.database)
    said = found.request
    return replace(
        request,
        target=said.kernel,
        configuration={**found.configuration, **request.configuration},
        sizes={**said.sizes, **request.sizes},
        dtype=said.dtype if request.dtype is None else request.dtype,
        modes=request.modes or said.modes,
        device=said.device if request.device is None else request.device,
        compiler=request.compiler or said.compiler,
    )


def _look(request: CheckRequest) -> tuple[Sequence[Mode], Device]:
    """The modes and the device, found without running anybody's file."""
    is_file = _is_submission(request.target)
    if request.reference is not None and not is_file:
        raise UserError("--reference is for files: a kernel has its own reference.py")
    for name in (request.target, request.reference) if is_file else ():
        if name is not None and not ((path := path_named(name)) and path.is_file()):
            raise UserError(f"{name}: cannot read: there is no such file; name a Python file with a model")
    legal = _FILE_MODES if is_file else load_model(request.target).kernel.modes
    if is_file and request.configuration:
        raise UserError(f"{request.target} has no configuration: --config is for kernels")
    if request.architecture is not None:
        any_gpu(request.architecture)
    for mode in request.modes or ():
        if mode not in legal:
            raise UnknownNameError(f"mode of {request.target}", mode, legal)
    modes = [Mode(mode) for mode in request.modes or ()]
    return modes or ((Mode.TRAIN,) if is_file else legal), find_device(request.device)


def _read(request: CheckRequest, device: Device) -> Files:
    """The files of a submission, read once: what is in them later is nobody's."""
    target = Path(request.target)
    own = (target, read_text(target))
    reference = own if request.reference is None else (path := Path(request.reference), read_text(path))
    candidate = None if request.reference is None else own
    prepare = partial(set_policy, wait=True)  # what is checked is the kernel, whenever it was built
    where = device.torch_device
    return Files(reference, candidate, dict(request.sizes), require_dtype(request.dtype), where, prepare=prepare)


def _check_mode(request: CheckRequest, submission: Files | None, mode: Mode, device: Device, show: Show) -> CheckReport:
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
        if submission is None:
            verdict = run_isolated(request.seconds, _verdict_on_kernel, request, mode, listen=listen)
        else:
            judge = partial(run_isolated, request.seconds, _verdict_on_file, submission, mode)
            verdict = judge(listen=listen, has_children=True)
    except IsolationError as error:
        after = f"after stage '{stages[-1].name}'" if stages else "before the first stage ended"
        listen(Stage("process", False, time.perf_counter() - started, f"{error}, {after}"))
        reason = next(stage.detail for stage in stages if not stage.passed)
        verdict = Verdict(False, tuple(stages), 0.0, None, reason)
    require = request.require or (Claim.DROP_IN if submission is None else Claim.PROBLEM)
    return CheckReport(request.target, mode, device, configuration, require, verdict)


def _is_submission(target: str) -> bool:
    """Whether this is a file with any model in it, and not a kernel with configurations."""
    return Path(target).suffix == ".py" and not is_kernel_file(target)


# What follows runs in the process: of a kernel, everything; of a file, the judge alone.


class _Reporter(Listener):
    def ended(self, stage: Stage, refusal: StageRefused | None) -> None:  # noqa: ARG002
        report(stage)


def _verdict_on_file(files: Files, mode: Mode) -> Verdict:
    """The verdict on a file whose code runs in other processes: the reference's in one, `ModelNew`'s in another."""
    log = StageLog(_Reporter())
    with Room(OfReference(files)) as reference, Room(OfCandidate(files)) as candidate:
        try:
            source = RemoteSource(reference, reference.open())
            original = source.party(mode)
            oracle = consult_reference(source, original, SEEDS)
        except (*FAILURES, RoomError) as error:
            path = files.reference[0]
            raise KernelFolderError(f"{path}: the reference does not run: {described(error)}") from error
        try:
            candidate.open()
        except ToldError as error:
            raise KernelFolderError(str(error)) from error
        contender = RemoteContender(candidate)
        judge_contender(log, oracle, contender, source, original.state(), mode, files.device)
    return log.verdict(oracle.tolerance)


def _verdict_on_kernel(request: CheckRequest, mode: Mode) -> Verdict:
    set_policy(wait=True)  # what is checked is the kernel, whenever it was built
    device, factory = find_device(request.device), load_model(request.target)
    kernel, where = factory.kernel, device.torch_device
    kernel.space.fix(request.configuration)  # refuses what is no value of it before anything that takes time
    source = LocalSource(kernel.reference(request.sizes, request.dtype), where)
    compiler = compiler_for(device, request.compiler, kernel.languages)
    log = StageLog(_Reporter())
    try:
        original = source.party(mode)
        oracle = consult_reference(source, original, SEEDS)
    except FAILURES as error:
        raise KernelFolderError(f"{source.reference.path}: the reference does not run: {described(error)}") from error
    inputs = oracle.cases[0].inputs
    try:
        with log.stage("model"):
            try:
                model = prepare_model(
                    source.reference, mode, where, cast(Callable[..., nn.Module], factory), original.state()
                )
            except FAILURES as error:
                raise StageRefused(f"it cannot be made like the reference: {placed(error, kernel.folder)}") from error
            contender = _contender(factory, compiler, device, request, model, inputs)
        prepare = _preparation(contender, model)
        with log.stage("build"):
            prepare(inputs)
        _build_for_gpu(contender, request, device, model, inputs, log)
        verdict = QuickGate(LocalParty(model), oracle, contender.exemptions).check(prepare, log)
        if verdict.passed:
            run_battery(Answers(source, oracle, where, mode), contender, log, Depth.EVERYTHING, keep_going=True)
    except StageRefused:
        pass  # the log has it
    except FAILURES as error:
        with contextlib.suppress(StageRefused), log.stage("run"):
            raise StageRefused(placed(error, kernel.folder)) from error
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
        details.append(f"it builds for {architecture}")


def _contender(
    factory: type[TunedModule],
    compiler: Compiler,
    device: Device,
    request: CheckRequest,
    model: nn.Module,
    inputs: Sequence[object],
) -> KernelContender:
    tuned, kernel = cast(TunableModel, model), factory.kernel
    problem = tuned.problem(*inputs)
    if problem is None:
        raise UserError(f"kernel '{kernel.name}' cannot serve its reference's inputs: {tuned.reason}")
    valid = kernel.space.fix(request.configuration).enumerate(problem, device)
    configuration = valid[valid.default]
    report(dict(configuration))
    return KernelContender(kernel, cast(ModelFactory, factory), configuration, compiler)


def _preparation(contender: KernelContender, model: nn.Module) -> Callable[[Sequence[object]], None]:
    def prepare(inputs: Sequence[object]) -> None:
        try:
            reason = contender.ready(model, inputs)
        except CompileError as error:
            raise StageRefused(f"it does not compile: {error}") from error
        if reason is not None:
            raise StageRefused(reason)

    return prepare
