"""The gate alone: a configuration of a kernel, or any file's `ModelNew`, against its reference, in its own process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from torch import nn

from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.build import CompilerName
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.errors import CompileError, KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.gate.battery import Depth, run_battery
from tunebench.tuner.gate.contender import Contender, KernelContender, ModuleContender
from tunebench.tuner.gate.faults import FAILURES, described
from tunebench.tuner.gate.harness import Answers
from tunebench.tuner.gate.oracle import consult_reference
from tunebench.tuner.gate.quick import QuickGate
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.isolation import context, start_forkserver
from tunebench.tuner.kernel import Kernel, Mode, ModelFactory, TunableModel, prepare_model
from tunebench.tuner.reference import Reference, load_candidate, load_reference
from tunebench.tuner.result import Stage, Verdict
from tunebench.tuner.space import Value

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
        modes: None for every mode of a kernel; for a file, train mode, as KernelBench runs it.
        seconds: a check that takes longer is ended, and refused.
    """

    target: str
    reference: str | None = None
    configuration: Mapping[str, Value] = field(default_factory=dict)
    sizes: Mapping[str, int | float] = field(default_factory=dict)
    modes: Sequence[str] | None = None
    device: str | None = None
    compiler: CompilerName | None = None
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
    is_file = Path(request.target).suffix == ".py"
    legal = _FILE_MODES if is_file else load_model(request.target).kernel.modes
    for mode in request.modes or ():
        if mode not in legal:
            raise UnknownNameError(f"mode of {request.target}", mode, legal)
    modes = [Mode(mode) for mode in request.modes or ()]
    return modes or ((Mode.TRAIN,) if is_file else legal), find_device(request.device)


def _check_mode(request: CheckRequest, mode: Mode, device: Device, show: Show) -> CheckReport:
    stages: list[Stage] = []
    configuration: Mapping[str, Value] | None = None
    started = time.perf_counter()
    ours, theirs = context().Pipe(duplex=False)
    process = context().Process(target=_in_child, args=(request, mode, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        while True:
            left = request.seconds - (time.perf_counter() - started)
            if not ours.poll(max(0.0, left)):
                ended = f"still running after {request.seconds:.0f} s: killed"
                break
            try:
                message = ours.recv()
            except EOFError:
                process.join()
                ended = _cause(process.exitcode or 0)
                break
            if isinstance(message, UserError):
                raise message
            if isinstance(message, Verdict):
                return CheckReport(request.target, mode, device, configuration, message)
            if isinstance(message, Stage):
                stages.append(message)
                show(mode, message)
            else:
                configuration = message
    finally:
        process.kill()
        process.join()
    after = f"after stage '{stages[-1].name}'" if stages else "before the first stage ended"
    last = Stage("process", False, time.perf_counter() - started, f"{ended}, {after}")
    show(mode, last)
    reason = next((stage.detail for stage in (*stages, last) if not stage.passed), "")
    return CheckReport(request.target, mode, device, configuration, Verdict(False, (*stages, last), 0.0, None, reason))


def _cause(code: int) -> str:
    return f"the process was killed by {signal.Signals(-code).name}" if code < 0 else f"the process ended with {code}"


# What follows runs in the child.


def _in_child(request: CheckRequest, mode: Mode, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    try:
        connection.send(_verdict(_resolve(request), request, mode, connection))
    except UserError as error:
        connection.send(UserError(str(error)))
    connection.close()
    os._exit(0)  # a binary on trial may have left threads behind


def _resolve(request: CheckRequest) -> _Subject:
    device = find_device(request.device)
    path = Path(request.target)
    if path.suffix == ".py":
        if request.configuration:
            raise UserError(f"{path} has no configuration: --config is for kernels")
        reference = load_reference(Path(request.reference or request.target), request.sizes)
        factory = load_candidate(path) if request.reference else reference.candidate
        if factory is None:
            raise KernelFolderError(f"{path}: no ModelNew; define it there, or name its reference with --reference")
        return _Subject(reference, device, _FILE_MODES, factory, None, None)
    if request.reference:
        raise UserError("--reference is for files: a kernel has its own reference.py")
    model = load_model(request.target)
    model.kernel.space.fix(request.configuration)  # refuses what is no value of it before anything that takes time
    reference = model.kernel.reference(request.sizes)
    compiler = compiler_for(device, request.compiler)
    return _Subject(reference, device, model.kernel.modes, model, model.kernel, compiler)


def _verdict(subject: _Subject, request: CheckRequest, mode: Mode, connection: Connection) -> Verdict:
    where = subject.device.torch_device
    log = StageLog(connection.send)
    try:
        original = prepare_model(subject.reference, mode, where)
        oracle = consult_reference(subject.reference, original, where, SEEDS)
    except FAILURES as error:
        raise KernelFolderError(f"{subject.reference.path}: the reference does not run: {described(error)}") from error
    try:
        with log.stage("model"):
            model = _made(subject, original, mode)
            contender = _contender(subject, request, model, oracle.cases[0].inputs, connection)
        prepare = _preparation(contender, model)
        with log.stage("build"):
            prepare(oracle.cases[0].inputs)
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


def _made(subject: _Subject, original: nn.Module, mode: Mode) -> nn.Module:
    where = subject.device.torch_device
    try:
        return prepare_model(subject.reference, mode, where, subject.factory, original.state_dict())
    except FAILURES as error:
        raise StageRefused(f"it cannot be made like the reference: {described(error)}") from error


def _contender(
    subject: _Subject, request: CheckRequest, model: nn.Module, inputs: Sequence[object], connection: Connection
) -> Contender:
    if subject.kernel is None or subject.compiler is None:
        return ModuleContender(subject.factory)
    kernel = subject.kernel
    problem = cast(TunableModel, model).problem(*inputs)
    if problem is None:
        raise UserError(f"kernel '{kernel.name}' cannot serve its reference's inputs on {subject.device.kind}")
    valid = kernel.space.fix(request.configuration).enumerate(problem, subject.device)
    configuration = valid[valid.default]
    connection.send(dict(configuration))
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
