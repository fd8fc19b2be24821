"""A request with everything that it names, and what evaluates it: all that a worker process imports of `tune`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning import PRELOAD
from tunebench.studies.tuning.on_this_machine import Lane
from tunebench.studies.tuning.study_file import ExecutorName, StudyRequest
from tunebench.tuner.build import Build
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind, find_devices
from tunebench.tuner.errors import UserError
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.isolation import is_watched
from tunebench.tuner.kernel import Kernel, Mode, ModelFactory
from tunebench.tuner.problem import Accuracy, Objective, Problem
from tunebench.tuner.reference import Reference
from tunebench.tuner.search.strategies import find_sampler
from tunebench.tuner.settings import Setting, apply_settings, in_force, require_settings
from tunebench.tuner.space import SearchSpace
from tunebench.tuner.study.account import Account, Activity
from tunebench.tuner.study.evaluate import LocalEvaluator
from tunebench.tuner.study.plan import has_time_to_compile
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.timing.confirm import most_seconds
from tunebench.tuner.timing.energy import counter_of


@dataclass(frozen=True)
class Resolved:
    """A request whose every name has been found; running it needs only a database.

    Attributes:
        devices: of one model; a study evaluates on all of them at once.
        expected: the problem that its study has to be of; None for whatever its sizes make.
        lane: what of this machine it runs on; None for all of its devices.
    """

    request: StudyRequest
    model: type[TunedModule]
    space: SearchSpace
    devices: Sequence[Device]
    compiler: Compiler
    reference: Reference
    modes: Sequence[Mode]
    expected: Problem | None = None
    lane: Lane | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel to tune."""
        return self.model.kernel

    @property
    def device(self) -> Device:
        """The first of the devices."""
        return self.devices[0]

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of PyTorch while it is tuned."""
        return self.request.settings or {}

    @property
    def accuracy(self) -> Accuracy:
        """How wrong a configuration may be."""
        return Accuracy.under(self.settings, self.request.accuracy)


def resolve(request: StudyRequest) -> Resolved:
    """Find everything a request names, before anything is created or run.

    Settings of PyTorch's that it does not say are those of this process.

    Raises:
        UserError: something is unknown or not on this machine.
    """
    if not is_watched():
        start_forkserver(PRELOAD)
    model = load_model(request.kernel)
    kernel = model.kernel
    find_sampler(request.sampler)
    most_seconds()  # what the environment says of the final rounds is refused now, not after the search
    devices = _devices(request)
    if request.settings is None:
        here = in_force(Setting, devices[0].torch_device.type)
        request = request.model_copy(update={"settings": here})
    else:
        require_settings(request.settings, devices[0].torch_device.type)
    _require_energy(request, devices)
    modes = kernel.modes_named(request.modes or kernel.modes)
    if request.compile is None:
        seconds = None if request.seconds is None else request.seconds / len(modes)
        compiles = devices[0].kind is DeviceKind.CUDA and has_time_to_compile(seconds)
        request = request.model_copy(update={"compile": compiles})
    space = kernel.space.restrict(request.tunables)
    for values in request.start:
        space.fix(values)  # refuses what is no value of it
    return Resolved(
        request=request,
        model=model,
        space=space,
        devices=devices,
        compiler=compiler_for(devices[0], request.compiler, kernel.languages_in(space)),
        reference=kernel.reference(request.sizes, request.dtype),
        modes=modes,
    )


def _require_energy(request: StudyRequest, devices: Sequence[Device]) -> None:
    """Refuse an objective that cannot be measured; what a cluster's devices report is found there."""
    if request.objective is Objective.TIME or request.executor is ExecutorName.RAY:
        return
    for device in devices:
        if counter_of(device) is None:
            raise UserError(
                f"the objective '{request.objective}' needs a GPU whose energy NVML reports, and {device.name} is "
                "none: leave it out to minimise time"
            )


def _devices(request: StudyRequest) -> Sequence[Device]:
    if request.device and request.devices:
        raise UserError("a study runs on one device or on several: give --device or --devices")
    if request.executor is ExecutorName.RAY:
        if request.devices:
            raise UserError("Ray says which devices there are: leave --devices out; --workers says how many at most")
        from tunebench.studies.tuning.on_ray import devices_of

        return [device for device, _ in devices_of(request)]
    devices = find_devices(request.devices or [request.device])
    if request.address is not None:
        raise UserError("an address is that of a Ray cluster: give --executor ray, or leave it out")
    if request.workers and (request.devices or devices[0].kind is not DeviceKind.CPU):
        raise UserError("several workers are for the CPU: name GPUs as --devices cuda:0,cuda:1 or --devices all")
    return devices


def make_evaluator(
    request: StudyRequest, mode: Mode, cores: Collection[int] = (), driving: Collection[int] = ()
) -> LocalEvaluator:
    """The evaluator of a request in one mode on one device; called in the worker process.

    Args:
        cores: the process keeps to these; it may use all that it has unless given.
        driving: of these, those that drive timings and do nothing else meanwhile.

    Raises:
        UserError: the model cannot serve its reference's inputs, or something is not on this machine.
    """
    set_policy(steps=False)  # each would need builds of its own, for every plan on trial
    if cores:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(min(torch.get_num_threads(), len(cores)))
    account = Account()
    with account.phase(Activity.WORKER):
        resolved = resolve(request)
        apply_settings(resolved.settings, resolved.device.torch_device.type)
    with account.phase(Activity.CONTEXT):
        if resolved.device.kind is DeviceKind.CUDA:
            torch.cuda.set_device(resolved.device.torch_device)  # as a program does that has one of several
        torch.zeros(1, device=resolved.device.torch_device).item()
    with account.phase(Activity.REFERENCE):
        subject = Subject.prepare(
            resolved.kernel,
            resolved.model,
            resolved.reference,
            mode,
            resolved.device,
            resolved.accuracy,
            request.objective,
        )
    prepared = account.seconds
    return LocalEvaluator(subject, resolved.compiler, driving=driving, prepared=prepared)


def make_contender(request: StudyRequest, configuration: Configuration, build: Build) -> tuple[Source, KernelContender]:
    """A configuration of a request's kernel, and its reference; called in a process of its own."""
    set_policy(wait=True, steps=request.seconds is None)  # the seconds of a run are not for their builds
    resolved = resolve(request)
    factory = cast(ModelFactory, resolved.model)
    contender = KernelContender(
        resolved.kernel, factory, configuration, resolved.compiler, build, accuracy=resolved.accuracy
    )
    return Source(resolved.reference, resolved.device.torch_device), contender
