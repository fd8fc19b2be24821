"""The base of every `ModelNew`: chooses a configuration for the call at hand, once, and runs it."""

from __future__ import annotations

import abc
import ctypes
import threading
import warnings
from typing import Any, ClassVar

import torch
from torch import nn

from tunebench.kernels.selection import Choice, Tier, choose
from tunebench.tuner.compile import compiler_for
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.device import Device, device_of
from tunebench.tuner.errors import CompileError, CompilerMissingError, LaunchError
from tunebench.tuner.kernel import Kernel, Plan
from tunebench.tuner.problem import Problem

ITEM_BYTES = {"float32": 4, "float64": 8}
SCALAR_TYPE: dict[str, type[ctypes.c_float] | type[ctypes.c_double]] = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}
"""The ctypes type of a kernel's `scalar_t` parameter, by torch dtype name."""


class TunedModule(nn.Module, abc.ABC):
    """A model whose forward runs a tuned kernel, and the reference's own operations where no kernel can serve.

    Constructing one touches no database and compiles nothing. The first forward of a problem on a device looks its
    configuration up, builds it, and keeps both; `choices` says what was chosen and where it came from. A call that
    needs a gradient, runs under autocast or is being traced by torch.compile takes the reference's operations.
    """

    kernel: ClassVar[Kernel]

    def __init__(self) -> None:
        super().__init__()
        self._pinned: Plan | None = None
        self._plans: dict[tuple[Problem, Device], Plan | None] = {}
        self._choices: dict[tuple[Problem, Device], Choice] = {}

    @abc.abstractmethod
    def problem(self, *inputs: Any) -> Problem | None:
        """The problem that a call with these inputs is; None where the kernel cannot serve it."""

    @abc.abstractmethod
    def tuned_forward(self, plan: Plan, *inputs: Any) -> torch.Tensor:
        """The model under a plan, for inputs that `problem` accepts."""

    @abc.abstractmethod
    def reference_forward(self, *inputs: Any) -> torch.Tensor:
        """The model by the reference's operations."""

    def forward(self, *inputs: Any) -> torch.Tensor:
        """The model, by its kernel wherever that can serve."""
        if torch.compiler.is_compiling() or self._needs_gradient(inputs) or _autocasts(inputs):
            return self.reference_forward(*inputs)
        problem = self.problem(*inputs)
        if problem is None:
            return self.reference_forward(*inputs)
        device = device_of(next(value.device for value in inputs if isinstance(value, torch.Tensor)))
        plan = self._pinned if self._pinned is not None else self._plan(problem, device)
        return self.reference_forward(*inputs) if plan is None else self.tuned_forward(plan, *inputs)

    @property
    def choices(self) -> dict[tuple[Problem, Device], Choice]:
        """What was chosen for each problem and device met so far, and the tier it came from."""
        return dict(self._choices)

    def pin(self, plan: Plan | None) -> None:
        """Run this plan in every forward from now on; None goes back to choosing by problem and device."""
        self._pinned = plan

    def _plan(self, problem: Problem, device: Device) -> Plan | None:
        key = (problem, device)
        if key not in self._plans:
            choice, plan = _prepare(self.kernel, problem, device)
            self._choices[key] = choice
            self._plans[key] = plan
        return self._plans[key]

    def _needs_gradient(self, inputs: tuple[Any, ...]) -> bool:
        if not torch.is_grad_enabled():
            return False
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        return any(tensor.requires_grad for tensor in (*tensors, *self.parameters()))

    def __getstate__(self) -> dict[str, Any]:
        """Loaded binaries belong to this process: a copied or pickled model looks its plans up again."""
        return {**self.__dict__, "_pinned": None, "_plans": {}, "_choices": {}}


_prepared: dict[tuple[str, Problem, Device], tuple[Choice, Plan | None]] = {}
_preparing = threading.Lock()


def _prepare(kernel: Kernel, problem: Problem, device: Device) -> tuple[Choice, Plan | None]:
    """The choice for a problem and its loaded plan, shared by all models of the kernel in this process."""
    key = (kernel.digest, problem, device)
    with _preparing:
        if key not in _prepared:
            _prepared[key] = _choose_and_load(kernel, problem, device)
        return _prepared[key]


def _choose_and_load(kernel: Kernel, problem: Problem, device: Device) -> tuple[Choice, Plan | None]:
    choice = choose(kernel, problem, device)
    if choice.configuration is None:
        return choice, None
    try:
        compiler = compiler_for(device)
        variant = kernel.variant(choice.configuration, problem, device.architecture)
        module = compiler.load(BuildCache().build(compiler, variant), device.index)
    except (CompileError, CompilerMissingError, LaunchError) as error:
        # A model that was right before must stay right: say what is missing and take the reference's operations.
        warnings.warn(f"{kernel.name} runs the reference's operations: {error}", RuntimeWarning, stacklevel=4)
        return Choice(None, Tier.REFERENCE, str(error)), None
    return choice, Plan(choice.configuration, problem, device, module)


def forget_plans() -> None:
    """Look every configuration up again at the next forward of a new model, as after a study has ended."""
    with _preparing:
        _prepared.clear()


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a submodule is exactly that kind with nothing hooked into its forward."""
    return type(module) is kind and not module._forward_hooks and not module._forward_pre_hooks


def _autocasts(inputs: tuple[Any, ...]) -> bool:
    kinds = {value.device.type for value in inputs if isinstance(value, torch.Tensor)}
    return any(torch.is_autocast_enabled(kind) for kind in kinds)
