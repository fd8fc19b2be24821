"""Dispatch of a call that no earlier one was like: which plan serves it, or why the reference does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tunebench.kernels.runtime.autocast import UnderAutocast, autocast_type, cast
from tunebench.kernels.runtime.decision import Decided, Occasion, decide
from tunebench.kernels.runtime.derived import DerivedTensors
from tunebench.kernels.runtime.duel import Answer, Score, duel, winner_of
from tunebench.kernels.runtime.gradients import DifferentiableForward, by_plan, gradients_of, replica
from tunebench.kernels.runtime.misses import miss_of
from tunebench.kernels.runtime.ordinary import AUTOCAST, Call, held, saves_differently
from tunebench.kernels.runtime.policy import Policy, has_steps, waits_for_builds
from tunebench.kernels.runtime.reference_call import (
    ReferenceCall,
    describe_reference,
    is_quick_to_trace,
    which_differ,
    why_not_again,
)
from tunebench.kernels.runtime.selection import STEP_OPTION, Choice, Tier
from tunebench.kernels.runtime.served import KnownCalls, Served
from tunebench.tuner.device import device_of
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.settings import Setting

_SECONDS_OF_STEPS = 2e-2
"""Length of one round of a duel of steps: in training nobody waits for one, and the host goes on to the next."""
_GRADIENTS = "gradients of this model are taken, and with the reference they cost less"


def may_watch(module: Any, call: Call) -> bool:
    """Return whether the reference may serve a call, while it is watched, since nobody waits for the kernel."""
    if is_quick_to_trace() or module._pinned is not None or waits_for_builds(module.wait):
        return False
    is_captured = bool(call.inputs) and call.inputs[0].is_cuda and torch.cuda.is_current_stream_capturing()
    return call.obstacle in (None, AUTOCAST) and not is_captured


def look(
    module: Any,
    inputs: tuple[Any, ...],
    call: Call,
    policy: Policy,
    accuracy: Accuracy | None,
    traced: ReferenceCall | None,
) -> tuple[Served, bool]:
    """Return what serves a call, and whether it serves all calls like it, so that none is looked at again.

    Args:
        call: what `look_at` says of it.
        traced: what the reference was seen to do in such a call; None where it was not.
    """
    obstacle, dtype = call.obstacle, None
    if obstacle is AUTOCAST and call.inputs and (dtype := autocast_type(call.inputs[0].device)) is not None:
        obstacle = None
    lasts, trains = obstacle is None, call.needs_gradient and module._trains
    if call.needs_gradient and any(map(torch.Tensor.is_inference, (*call.inputs, *call.parameters, *call.buffers))):
        obstacle = obstacle or "a tensor was made in inference mode, and autograd saves none of those"
    elif call.needs_gradient and saves_differently():
        obstacle, lasts = obstacle or _GRADIENTS, False
    elif trains and module._pinned is None and (dtype is not None or not (module.is_trained and has_steps())):
        obstacle = obstacle or _GRADIENTS
    elif module.kernel.atomics and torch.are_deterministic_algorithms_enabled():
        obstacle = obstacle or "deterministic algorithms are required, and the kernel sums in any order"
    problem, cast = None, None
    if obstacle is None and dtype is not None:
        traced = traced or describe_reference(module, inputs)
        cast = UnderAutocast(module, call.inputs[0].device, dtype, traced)
    if obstacle is None:
        problem = module.problem(*inputs) if cast is None else cast.problem(inputs)
    if problem is not None and (call.needs_gradient or module._pinned is None):
        traced = traced or describe_reference(module, inputs)
    if problem is not None and call.needs_gradient and traced and (reason := why_not_again(module, inputs, traced)):
        problem = module.unserved(f"gradients are taken of the forward that was run, and {reason}")
    if problem is None:
        told = Choice(None, Tier.REFERENCE, obstacle or module.reason)
        return Served(None, obstacle=told, autocast=dtype, settings=(Setting.ALGORITHMS,)), lasts
    pinned = module._pinned
    trains = trains if pinned is None else call.needs_gradient and has_steps()
    if pinned and (cast is None or pinned.problem.named == problem.at(pinned.problem.accuracy)):
        return _run(module, pinned, call, cast, inputs, traced, trains=trains), lasts
    if pinned or traced is None:
        return Served(None, obstacle=Choice(None, Tier.REFERENCE, AUTOCAST)), lasts
    problem = module._identified(problem, inputs, traced)
    options = {**problem.options, **({STEP_OPTION: "training"} if trains else {})}
    problem = replace(problem, options=options).at(Accuracy.under(options, accuracy))
    occasion = Occasion(problem, device_of(call.inputs[0].device), policy, call.needs_gradient)
    choice, plan = _decided(module, occasion, inputs)
    counts = policy is not Policy.REFERENCE and cast is None and not trains
    miss = miss_of(module.kernel, problem, occasion.device, choice) if counts else None
    served = replace(_run(module, plan, call, cast, inputs, traced, trains=trains), miss=miss, settings=traced.settings)
    return served, lasts and occasion in module._plans


def _run(
    module: Any,
    plan: Plan | None,
    call: Call,
    cast: UnderAutocast | None,
    inputs: Sequence[Any],
    traced: ReferenceCall | None,
    *,
    trains: bool,
) -> Served:
    """Return how a plan serves a call.

    Args:
        trains: a backward is expected.
    """
    dtype = None if cast is None else cast.dtype
    if plan is None and call.needs_gradient and cast is None and module.training and module.is_trained and not trains:
        return Served(None, _note_backward, needs_gradient=True)
    if plan is not None and trains and cast is None and (ways := module.trained_forwards(plan)):
        way = plan.once(_best_way)
        if module._pinned is not None:
            way.number = (way.number + 1) % len(ways)  # so that the gate asks about all of them
        trained = ways[way.number]
        return Served(plan, lambda _, *given: trained(*given), needs_gradient=True)
    if plan is not None and trains and module._pinned is None:
        return Served(None, obstacle=Choice(None, Tier.REFERENCE, _GRADIENTS))
    if plan is None or (cast is None and not call.needs_gradient):
        return Served(plan, autocast=dtype)
    run: Callable[..., torch.Tensor] = by_plan(plan) if cast is None else partial(cast.run, plan)
    if call.needs_gradient and traced is not None:
        which = traced.differentiable or which_differ(module, inputs)
        run = DifferentiableForward(run, call.parameters, call.buffers, traced.moved, which, dtype)
    return Served(plan, run, call.needs_gradient, dtype)


def _decided(module: Any, occasion: Occasion, inputs: tuple[Any, ...]) -> Decided:
    """Return the choice for a problem and its plan; without a plan the reference's operations run."""
    decided: Decided | None = module._plans.get(occasion)
    if decided is None:
        wait, make_ready, duel_of = waits_for_builds(module.wait), module._ready_maker(), _duel
        if STEP_OPTION in occasion.problem.options:
            make_ready, duel_of = module.trained_forwards, _duel_of_steps
        decided = decide(module.kernel, occasion, make_ready, partial(duel_of, module, inputs), wait=wait)
        if not (decided[0].being_built or occasion.is_captured()):
            module._plans[occasion] = decided
    module._choices[occasion.problem, occasion.device] = decided[0]
    return decided


def _duel(module: Any, inputs: tuple[Any, ...], plans: Sequence[Plan]) -> list[Score]:
    """Time whole forwards, as the caller waits for them; on replicas, so that statistics and counters stay."""
    contenders = []
    for plan in plans:
        tuned = replica(module)
        tuned._known = KnownCalls()
        tuned.pin(plan)
        if tuned.is_frozen:
            tuned._derived = DerivedTensors()  # what the losers keep goes with them
        tuned._known.of(tuned).traced.update(module._known.of(module).traced)
        contenders.append(partial(tuned.forward, *inputs))
    by_reference = partial(type(module).reference_forward, replica(module), *inputs)
    exact = partial(_in_float64, module, inputs) if plans[0].problem.accuracy is Accuracy.EAGER else None
    return duel(contenders, by_reference, plans[0].device.torch_device, exact)


def _duel_of_steps(module: Any, inputs: tuple[Any, ...], plans: Sequence[Plan]) -> list[Score]:
    """Time whole steps, forward and backward, on replicas with leaves of their own; compare all that they give."""
    (plan,) = plans
    ways = len(module.trained_forwards(plan))
    if not ways:
        return [Score(0.0, "all of a step is torch's own")]
    with torch.no_grad():
        gradient = type(module).reference_forward(replica(module), *inputs)

    def step(forward_of: Callable[[Any], Callable[..., torch.Tensor]], dtype: torch.dtype) -> Answer:
        parameters, buffers = held(module)
        given, own = _leaves(inputs, dtype), _leaves(parameters, dtype)
        forward = forward_of(replica(module, own, [one.clone() for one in cast(buffers, dtype)]))
        leaves = [one for one in (*given, *own) if isinstance(one, torch.Tensor) and one.requires_grad]
        by = gradient.to(dtype)

        def answer() -> tuple[torch.Tensor | None, ...]:
            output = forward(*given)
            return output, *gradients_of([output], leaves, [by])

        return answer

    def by_reference(made: Any) -> Callable[..., torch.Tensor]:
        return made.reference_forward  # type: ignore[no-any-return]

    def by_way(number: int, made: Any) -> Callable[..., torch.Tensor]:
        return made.trained_forwards(plan)[number]  # type: ignore[no-any-return]

    tuned = [step(partial(by_way, number), gradient.dtype) for number in range(ways)]
    exact = step(by_reference, torch.float64) if plan.problem.accuracy is Accuracy.EAGER else None
    device = plan.device.torch_device
    scores = duel(tuned, step(by_reference, gradient.dtype), device, exact, round_seconds=_SECONDS_OF_STEPS)
    best = plan.once(_best_way).number = winner_of(scores) or 0
    return [scores[best]]


def _note_backward(module: Any, *inputs: Any) -> Any:
    """Run the reference, and have the module trained once a gradient is taken."""
    output = module.reference_forward(*inputs)
    if isinstance(output, torch.Tensor) and output.grad_fn is not None:
        output.grad_fn.register_prehook(lambda _: module._note_backward())
    return output


@dataclass
class _Way:
    """The number of the way among `trained_forwards` that won the duel of steps."""

    number: int = 0


def _best_way(_: Plan) -> _Way:
    return _Way()


def _leaves(values: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """Return the same values, of which those need a gradient that do; floating-point tensors in this type."""
    made = cast(values, dtype)
    for one, value in zip(made, values, strict=True):
        if one is not value:
            one.requires_grad_(value.requires_grad)
    return made


def _in_float64(module: Any, inputs: tuple[Any, ...]) -> torch.Tensor:
    """Return the reference's answer in float64, by a replica: other threads may be running this module."""
    double = torch.float64
    made = replica(module, *(cast(tensors, double) for tensors in held(module)))
    device = next(one.device.type for one in inputs if isinstance(one, torch.Tensor))
    with torch.no_grad(), torch.autocast(device, enabled=False):
        answer: torch.Tensor = type(module).reference_forward(made, *cast(inputs, double))
    return answer
