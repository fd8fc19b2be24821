"""What serves a problem on a device: decided once, for all models of a kernel in this process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tunebench.kernels.runtime.choices_file import loaded_choice
from tunebench.kernels.runtime.duel import Score, winner_of
from tunebench.kernels.runtime.policy import Policy
from tunebench.kernels.runtime.selection import Choice, Tier, what_is_known
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
DuelOf = Callable[[Sequence[Plan]], Sequence[Score]]
"""The duel between plans and the reference, on the inputs of the call at hand."""


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


_recorded: dict[tuple[str, Problem, Device, Choice | None], Decided] = {}
_settled: dict[tuple[str, Problem, Device, bool], Decided] = {}
# A model may hold another tuned model, whose first forward then stands inside the duel of the outer one.
_deciding = threading.RLock()


def decide(kernel: Kernel, occasion: Occasion, make_ready: MakeReady, duel_of: DuelOf) -> Decided:
    """What serves the calls of an occasion."""
    policy, problem, device = occasion.policy, occasion.problem, occasion.device
    if policy is Policy.REFERENCE:
        return Choice(None, Tier.REFERENCE, "the policy is 'reference'"), None
    with _deciding:
        loaded = loaded_choice(kernel, problem, device)
        # A duel waits for the device, which a capture forbids: there the nearest result serves.
        if loaded is None and policy is Policy.BEST and not occasion.is_captured():
            key = (kernel.digest, problem, device, occasion.needs_gradient)
            if key not in _settled:
                _settled[key] = _settle(kernel, problem, device, make_ready, duel_of)
            return _settled[key]
        choice, plan = _without_duel(kernel, problem, device, make_ready, loaded)
    if policy is Policy.EXACT and not (choice.measured or choice is loaded):
        return Choice(None, Tier.REFERENCE, f"nothing was measured for this problem on {device.name}"), None
    return choice, plan


def forget_plans() -> None:
    """Look every configuration up again at the next forward of a new model, as after a study has ended."""
    with _deciding:
        _recorded.clear()
        _settled.clear()


def _without_duel(
    kernel: Kernel, problem: Problem, device: Device, make_ready: MakeReady, loaded: Choice | None
) -> Decided:
    """What a loaded file says, else the best result; the first of them that this machine can run."""
    key = (kernel.digest, problem, device, loaded)
    if key not in _recorded:
        choices = what_is_known(kernel, problem, device).choices() if loaded is None else iter([loaded])
        _recorded[key] = next(_runnable(kernel, choices, problem, device, make_ready))
    return _recorded[key]


def _settle(kernel: Kernel, problem: Problem, device: Device, make_ready: MakeReady, duel_of: DuelOf) -> Decided:
    """What evidence says, and where that does not suffice the winner of a duel."""
    known = what_is_known(kernel, problem, device)
    evidence = known.evidence()
    choices = known.contenders() if evidence is None else [evidence, *known.contenders()]
    runnable = _runnable(kernel, choices, problem, device, make_ready)
    first = next(runnable)
    if first[0] is evidence or first[1] is None:
        return first
    ready = [first, *runnable]
    scores = duel_of([plan for _, plan in ready if plan is not None])
    winner = winner_of(scores)
    if winner is not None:
        choice, plan = ready[winner]
        said = f"{scores[winner]} the reference's speed in a duel on the first call's inputs"
        return replace(choice, reason=f"{choice.reason}; {said}"), plan
    told = ", ".join(f"{choice.tier} {score}" for (choice, _), score in zip(ready, scores, strict=True))
    reason = f"the reference won a duel on the first call's inputs: {told} ({first[0].reason})"
    return Choice(None, Tier.REFERENCE, reason), None


def _runnable(
    kernel: Kernel, wanted: Iterable[Choice], problem: Problem, device: Device, make_ready: MakeReady
) -> Iterator[Decided]:
    """The choices that this machine can run, in their order, and the reference where it can run none of them.

    What it cannot run is warned of and passed over.
    """
    # A model that was right before must stay right: say what is missing, and at last take the reference's operations.
    missing, found = "", False
    for choice in wanted:
        plan = None
        if choice.configuration is not None:
            try:
                plan = build_plan(kernel, choice.configuration, problem, device, compiler_for(device))
                make_ready(plan)
            except CompilerMissingError as error:
                missing = str(error)
                break
            except (CompileError, LaunchError) as error:
                missing = str(error)
                message = f"{kernel.name} passes over its {choice.tier} configuration: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=8)
                continue
        found = True
        yield choice, plan
    if not found:
        warnings.warn(f"{kernel.name} runs the reference's operations: {missing}", RuntimeWarning, stacklevel=8)
        yield Choice(None, Tier.REFERENCE, missing), None
