"""What serves a problem on a device: decided once, for all models of a kernel in this process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tunebench.kernels.runtime.duel import DuelResult
from tunebench.kernels.runtime.policy import Policy
from tunebench.kernels.runtime.selection import Choice, Tier, choices
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.errors import CompileError, CompilerMissingError, LaunchError
from tunebench.tuner.kernel import Kernel, Plan
from tunebench.tuner.problem import Problem

Decided = tuple[Choice, Plan | None]
"""What serves a problem: without a plan the reference's operations."""
MakeReady = Callable[[Plan], None]
"""Makes what the first forward under a plan would make, beyond its binary; LaunchError where this machine cannot."""
DuelOf = Callable[[Plan], DuelResult]
"""The duel between a plan and the reference, on the inputs of the call at hand."""


@dataclass(frozen=True)
class Occasion:
    """What a decision depends on.

    Attributes:
        needs_gradient: with or without one a call costs the host something else.
    """

    problem: Problem
    device: Device
    policy: Policy
    needs_gradient: bool

    def is_captured(self) -> bool:
        """Whether the call is recorded into a CUDA graph, where nothing may wait for the device."""
        return self.device.kind is DeviceKind.CUDA and torch.cuda.is_current_stream_capturing()


_prepared: dict[tuple[str, Problem, Device], Decided] = {}
_settled: dict[tuple[str, Problem, Device, bool], Decided] = {}
# A model may hold another tuned model, whose first forward then stands inside the duel of the outer one.
_deciding = threading.RLock()


def decide(kernel: Kernel, occasion: Occasion, make_ready: MakeReady, duel_of: DuelOf) -> Decided:
    """What serves the calls of an occasion."""
    policy, device = occasion.policy, occasion.device
    if policy is Policy.REFERENCE:
        return Choice(None, Tier.REFERENCE, "the policy is 'reference'"), None
    choice, plan = _prepare(kernel, occasion.problem, device, make_ready)
    if choice.measured or plan is None or policy is Policy.RECORDED:
        return choice, plan
    if policy is Policy.EXACT:
        return Choice(None, Tier.REFERENCE, f"nothing was measured for this problem on {device.name}"), None
    # A duel waits for the device, which a capture forbids: there the nearest result serves.
    if occasion.is_captured():
        return choice, plan
    return _settle(kernel, choice, plan, duel_of, needs_gradient=occasion.needs_gradient)


def forget_plans() -> None:
    """Look every configuration up again at the next forward of a new model, as after a study has ended."""
    with _deciding:
        _prepared.clear()
        _settled.clear()


def _prepare(kernel: Kernel, problem: Problem, device: Device, make_ready: MakeReady) -> Decided:
    """The choice for a problem and its loaded plan."""
    key = (kernel.digest, problem, device)
    with _deciding:
        if key not in _prepared:
            _prepared[key] = _choose_and_load(kernel, problem, device, make_ready)
        return _prepared[key]


def _settle(kernel: Kernel, choice: Choice, plan: Plan, duel_of: DuelOf, *, needs_gradient: bool) -> Decided:
    """Who serves a problem that nobody measured: the winner of one duel."""
    key = (kernel.digest, plan.problem, plan.device, needs_gradient)
    with _deciding:
        if key not in _settled:
            result = duel_of(plan)
            _settled[key] = (
                (replace(choice, reason=f"{choice.reason}; {result}"), plan)
                if result.won
                else (Choice(None, Tier.REFERENCE, f"the reference won a duel: {result} ({choice.reason})"), None)
            )
        return _settled[key]


def _choose_and_load(kernel: Kernel, problem: Problem, device: Device, make_ready: MakeReady) -> Decided:
    """The best choice that this machine can run; what it cannot run is warned of and passed over."""
    # A model that was right before must stay right: say what is missing, and at last take the reference's operations.
    missing = ""
    for choice in choices(kernel, problem, device):
        if choice.configuration is None:
            return choice, None
        try:
            plan = build_plan(kernel, choice.configuration, problem, device, compiler_for(device))
            make_ready(plan)
        except CompilerMissingError as error:
            missing = str(error)
            break
        except (CompileError, LaunchError) as error:
            missing = str(error)
            message = f"{kernel.name} passes over its {choice.tier} configuration: {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=4)
        else:
            return choice, plan
    warnings.warn(f"{kernel.name} runs the reference's operations: {missing}", RuntimeWarning, stacklevel=4)
    return Choice(None, Tier.REFERENCE, missing), None
