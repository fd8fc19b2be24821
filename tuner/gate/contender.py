"""The model on trial: a kernel under one configuration, or any module that claims to equal the reference."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from tunebench.tuner.build import Build, LoadedModule
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.for_gpu import refusal_for_gpu
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, device_of
from tunebench.tuner.errors import CompileError, LaunchError
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.launches import Launch, LaunchRecorder
from tunebench.tuner.gate.manner import other_mode
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.sanitizer import Inspection, LaunchInspection, nothing_to_inspect
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.kernel import Kernel, Mode, ModelFactory, Plan, TunableModel, prepare_model
from tunebench.tuner.problem import Accuracy, Problem

ModuleFactory = Callable[..., nn.Module]


class Contender(abc.ABC):
    """Makes what is compared with the reference.

    Attributes:
        exemptions: what it has declared.
    """

    exemptions: Exemptions

    @abc.abstractmethod
    def model(self, source: Source, mode: Mode, state: Mapping[str, torch.Tensor] | None) -> Model:
        """Make its module like the reference's from one seed, with these weights, in this mode."""

    def modes(self, mode: Mode) -> Sequence[Mode]:
        """Return the modes in which it is asked where a run is about one of them, that one first."""
        return (mode, other_mode(mode))

    def choosing(self, source: Source, mode: Mode, state: Mapping[str, torch.Tensor]) -> Mapping[str, Model]:  # noqa: ARG002
        """Make its modules as programs have them, which choose for themselves what serves a call, by the policy that
        they choose by; none of what has no choice, or of which nobody knows."""
        return {}

    def serves(self, model: Model, inputs: Sequence[Any]) -> bool:  # noqa: ARG002
        """Return whether such a call runs what is on trial, not operations of the reference."""
        return True

    def building(self) -> contextlib.AbstractContextManager[None]:
        """Have what is asked in the block built, whatever it needs."""
        return contextlib.nullcontext()

    def inspection(self, model: Model, source: Source, mode: Mode) -> Inspection:  # noqa: ARG002
        """Return what compute-sanitizer is to watch of one call of a model that was made so."""
        return nothing_to_inspect("asked of files and of kernels only")  # it watches a process from its start


class KernelContender(Contender):
    """A kernel's model under one configuration, which is built for whatever problem a call is.

    Args:
        built: the build of the tuned problem's own variant, where there is one already.
        builds_more: build further variants where a problem needs them; where not, such problems are passed over, but
            for those of `building`.
        accuracy: of the problems that it is for; some configurations are for one of them only.
    """

    def __init__(
        self,
        kernel: Kernel,
        factory: ModelFactory,
        configuration: Configuration,
        compiler: Compiler,
        built: Build | None = None,
        *,
        builds_more: bool = True,
        accuracy: Accuracy = Accuracy.TOLERANCE,
    ) -> None:
        self._accuracy = accuracy
        self._factory = cast(ModuleFactory, factory)
        self.exemptions = Exemptions.of(kernel)
        self._kernel = kernel
        self._configuration = configuration
        self._compiler = compiler
        self._cache = BuildCache()
        self._builds = {built.variant_digest: built} if built else {}
        self._builds_more = builds_more
        self._modules: dict[tuple[str, Device], LoadedModule] = {}
        self._plans: dict[tuple[Problem, Device], Plan | str] = {}

    def model(self, source: Source, mode: Mode, state: Mapping[str, torch.Tensor] | None) -> Model:
        """See `Contender.model`."""
        module = prepare_model(source.reference, mode, source.device, self._factory, state)
        return Model(module, self.ready)

    def modes(self, mode: Mode) -> Sequence[Mode]:
        """See `Contender.modes`; another mode is another problem, which has configurations of its own."""
        return (mode,)

    def choosing(self, source: Source, mode: Mode, state: Mapping[str, torch.Tensor]) -> Mapping[str, Model]:
        """See `Contender.choosing`; what serves a call may be another configuration, or the reference."""
        models: dict[str, Model] = {}
        make = partial(prepare_model, source.reference, mode, source.device, self._factory, state)
        for policy in cast(TunableModel, make()).policies:
            module = make()
            cast(TunableModel, module).choose(policy, self._accuracy)
            models[policy] = Model(module)
        return models

    def ready(self, module: nn.Module, inputs: Sequence[Any]) -> str | None:
        """Pin the configuration's plan for these inputs, where a kernel serves them at all.

        Raises:
            CompileError: the configuration does not compile for this problem.
            LaunchError: the device refused the binary.
        """
        model = cast(TunableModel, module)
        problem = self._problem(model, inputs)
        if problem is None:
            return None  # the model runs the reference's operations, whatever is pinned
        device = device_of(next(value.device for value in inputs if isinstance(value, torch.Tensor)))
        key = (problem, device)
        if key not in self._plans:
            self._plans[key] = self._plan(model, problem, device)
        plan = self._plans[key]
        if isinstance(plan, str):
            return plan
        model.pin(plan)
        return None

    def serves(self, model: Model, inputs: Sequence[Any]) -> bool:
        """See `Contender.serves`."""
        return self._problem(cast(TunableModel, model.module), inputs) is not None

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """See `Contender.building`."""
        before, self._builds_more = self._builds_more, True
        self._plans = {key: plan for key, plan in self._plans.items() if isinstance(plan, Plan)}
        try:
            yield
        finally:
            self._builds_more = before

    def refused_for(self, module: nn.Module, inputs: Sequence[Any], architecture: str) -> CompileError | None:
        """Why it does not build for such a call on a GPU of that architecture; None where it does.

        Raises:
            CompilerMissingError: what builds it for a GPU is not on this machine.
        """
        problem = self._problem(cast(TunableModel, module), inputs)
        assert problem is not None, "it is ready"
        return refusal_for_gpu(self._kernel, self._configuration, problem, architecture)

    def inspection(self, model: Model, source: Source, mode: Mode) -> Inspection:  # noqa: ARG002 - the model has it
        """See `Contender.inspection`."""
        launches = self.launches(model, source.inputs(1))
        if not launches:
            return nothing_to_inspect("no launch of a kernel that was compiled here")
        return LaunchInspection(source.device.index or 0, tuple(launches), self.exemptions.bulk_copies)

    def launches(self, model: Model, inputs: Sequence[Any]) -> Sequence[Launch]:
        """The launches of one call, with what their arguments held."""
        module = cast(TunableModel, model.module)
        if self.ready(model.module, inputs) is not None or (problem := self._problem(module, inputs)) is None:
            return ()
        plan = next(plan for (known, _), plan in self._plans.items() if known == problem)
        assert isinstance(plan, Plan)
        variant = self._kernel.variant(plan.configuration, problem, plan.device.architecture)
        recorder = LaunchRecorder(plan.module, self._builds[variant.digest], plan.device.torch_device)
        module.pin(replace(plan, module=recorder))
        try:
            module(*inputs)
        finally:
            module.pin(plan)
        return recorder.launches

    def _problem(self, model: TunableModel, inputs: Sequence[Any]) -> Problem | None:
        problem = model.problem(*inputs)
        return problem and problem.at(self._accuracy)

    def _plan(self, model: TunableModel, problem: Problem, device: Device) -> Plan | str:
        # Tunables that matter for this problem only take their default.
        configuration = self._kernel.space.completed(self._configuration, problem, device)
        if configuration is None:
            return "the configuration is not valid there"
        variant = self._kernel.variant(configuration, problem, device.architecture)
        if variant.digest not in self._builds:
            if not self._builds_more:
                return "another binary serves there"
            self._builds[variant.digest] = self._cache.build(self._compiler, variant)
        loaded = (variant.digest, device)
        if loaded not in self._modules:
            self._modules[loaded] = self._compiler.load(self._builds[variant.digest], device.index)
        plan = Plan(self._kernel, configuration, problem, device, self._modules[loaded])
        try:
            model.make_ready(plan)
        except LaunchError as error:
            return str(error)  # at run time another configuration serves there
        return plan
