"""The gate on one configuration of a kernel, in a process with its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from torch import nn

from tunebench.kernels.runtime.misses import record_misses
from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.checking.report import Subject
from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.checking.telling import Teller
from tunebench.studies.request.options import Declaration
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.compile.for_gpu import ARCHITECTURE
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.errors import CompilerMissingError, UserError
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.examine import examine, make_ready, model_made, reference_runs, refusals_kept
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.isolation import report
from tunebench.tuner.kernel import Kernel, Mode, ModelFactory, TunableModel, prepare_model
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import Verdict
from tunebench.tuner.settings import apply_settings, settings_here
from tunebench.tuner.users_code import placed


def verdict_on_kernel(request: CheckRequest, mode: Mode) -> Verdict:
    """The verdict; what is asked and found is told to the process that asked (see `Teller`).

    Raises:
        UserError: the request names what is not there, or the reference does not run.
    """
    set_policy(wait=True)  # what is checked is the kernel, whenever it was built
    record_misses(False)
    device, factory = find_device(request.device), load_model(request.target)
    kernel, where = factory.kernel, device.torch_device
    apply_settings(request.settings or {}, where.type)
    kernel.space.fix(request.configuration)  # refuses what is no value of it before anything that takes time
    source = Source(kernel.reference(request.sizes, request.dtype), where)
    compiler = compiler_for(device, request.compiler, kernel.languages)
    teller, accuracy = Teller(report), Accuracy.under(settings_here(lambda: where.type), request.accuracy)
    log = StageLog(teller)
    with reference_runs(source.reference.path):
        answers = Answers.consult(source, mode, accuracy, draw=Draw(request.seed or 0))
    inputs, describe = answers.oracle.cases[0].inputs, partial(placed, folder=kernel.folder)
    with refusals_kept(log, describe):
        make = partial(prepare_model, source.reference, mode, where, cast(Callable[..., nn.Module], factory))
        module = model_made(log, lambda: make(answers.oracle.state), describe)
        configuration = _configuration(kernel, device, request, cast(TunableModel, module), inputs, accuracy)
        report(Subject(device.name, str(where), dict(configuration), _declared(kernel)))
        contender = KernelContender(kernel, cast(ModelFactory, factory), configuration, compiler, accuracy=accuracy)
        model = Model(module, contender.ready)
        with log.stage("build"):
            make_ready(model, inputs)
        _build_for_gpu(contender, request, device, module, inputs, log)
        teller.judged = answers, contender
        examine(answers, contender, log, model, describe=describe)
    return log.verdict(answers.oracle.tolerance)


def _declared(kernel: Kernel) -> tuple[Declaration, ...]:
    declared = {Declaration.ATOMICS: kernel.atomics, Declaration.REWRITES_ALGEBRA: kernel.rewrites_algebra}
    return tuple(name for name, is_so in declared.items() if is_so)


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


def _configuration(
    kernel: Kernel,
    device: Device,
    request: CheckRequest,
    model: TunableModel,
    inputs: Sequence[object],
    accuracy: Accuracy,
) -> Configuration:
    """The default's values with those of the request.

    Raises:
        UserError: the kernel does not serve such a call, or the configuration is not valid there.
    """
    problem = model.problem(*inputs)
    if problem is None:
        raise UserError(f"kernel '{kernel.name}' cannot serve its reference's inputs: {model.reason}")
    problem = problem.at(accuracy)
    valid = kernel.space.fix(request.configuration).enumerate(problem, device)
    default: Configuration = valid[valid.default]
    return default
