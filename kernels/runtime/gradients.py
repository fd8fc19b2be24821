"""Gradients through a tuned forward: its values, and the derivatives of the reference's own operations.

The tuned forward runs as one node of the autograd graph. When a gradient is asked for, the reference's operations run
again on the saved inputs and parameters, and autograd differentiates those. That gives first and higher derivatives of
inputs and parameters exactly as the reference has them, and costs one forward of the reference for each backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import nn

from tunebench.kernels.runtime.ordinary import held

Module = TypeVar("Module", bound=nn.Module)

_version_of = attrgetter("_version")


class DifferentiableForward:
    """A module's forward, as one node of the autograd graph for each call.

    Args:
        module: a tuned one.
        run: makes the result without a graph, from a call's inputs.
        parameters, buffers: of the module, as `held` has them.
        autocast: the type that autocast casts to in these calls; None where it is off.
    """

    __slots__ = ("autocast", "buffers", "counted", "module", "parameters", "run")

    def __init__(
        self,
        module: Any,
        run: Callable[..., torch.Tensor],
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        autocast: torch.dtype | None = None,
    ) -> None:
        self.module, self.run, self.parameters, self.buffers = module, run, parameters, buffers
        self.counted = [buffer for buffer in buffers if not buffer.is_inference()]
        self.autocast = autocast

    def __call__(self, *inputs: Any) -> torch.Tensor:
        """The result for inputs that the kernel serves."""
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        result: torch.Tensor = _apply(self, inputs, *tensors, *self.parameters)
        return result


class _Node(torch.autograd.Function):
    """One call as autograd sees it: its input tensors, then the parameters."""

    @staticmethod
    def forward(ctx: Any, call: DifferentiableForward, inputs: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        before = [*map(_version_of, call.counted)]
        buffers: Sequence[torch.Tensor | None] = call.buffers
        result = call.run(*inputs)
        if before != [*map(_version_of, call.counted)]:
            # What the forward itself writes (running statistics in train mode) no derivative depends on. Of the rest a
            # change before the backward is an error, as it is with the reference.
            same = [one for one, version in zip(call.counted, before, strict=True) if one._version == version]
            read = [one.is_inference() or any(one is other for other in same) for one in call.buffers]
            buffers = [one if is_read else None for one, is_read in zip(call.buffers, read, strict=True)]
        ctx.save_for_backward(*tensors, *buffers)
        ctx.call = call, inputs
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        (gradient,) = gradients
        saved: tuple[Any, ...] = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        call: DifferentiableForward
        call, given = ctx.call
        call.module._note_backward()
        kept = zip(call.buffers, saved[len(needed) :], strict=True)
        buffers = [(buffer if one is None else one).detach().clone() for buffer, one in kept]
        number = len(needed) - len(call.parameters)

        def run(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            module: Any = replica(call.module, tensors[number:], buffers)
            rest = iter(tensors)
            inputs = [next(rest) if isinstance(value, torch.Tensor) else value for value in given]
            result: torch.Tensor = module.reference_forward(*inputs)
            return result

        tensors, higher = saved[: len(needed)], torch.is_grad_enabled()
        return (None, None, *differentiate(run, tensors, needed, gradient, higher=higher, autocast=call.autocast))


# `_Node.apply` without what it does for functorch's sake, under which no kernel runs.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Node).apply


def differentiate(
    run: Callable[[Sequence[torch.Tensor]], torch.Tensor],
    tensors: Sequence[torch.Tensor],
    needed: Sequence[bool],
    gradient: torch.Tensor,
    *,
    higher: bool,
    autocast: torch.dtype | None = None,
) -> list[torch.Tensor | None]:
    """The gradients of a forward by its tensors; None where none is needed, or where the result does not depend on one.

    Args:
        run: the forward, by operations that autograd knows.
        needed: for each of the tensors, whether its gradient is.
        gradient: of the result.
        higher: whether the gradients have to be differentiable themselves.
        autocast: the type that autocast cast to when the result was made; None where it was off.
    """
    with torch.enable_grad(), torch.autocast(gradient.device.type, autocast, enabled=autocast is not None):
        # Views: hooks on the tensors run once, and the graph of a second derivative reaches the tensors.
        views = [_view(tensor, one) for tensor, one in zip(tensors, needed, strict=True)]
        result = run(views)
        asked = [view for view, one in zip(views, needed, strict=True) if one]
        found = iter(torch.autograd.grad(result, asked, gradient, create_graph=higher, allow_unused=True))
    return [next(found) if one else None for one in needed]


def _view(tensor: torch.Tensor, needed: bool) -> torch.Tensor:
    return tensor.view_as(tensor) if needed else tensor.detach()


def replica(
    module: Module, parameters: Sequence[torch.Tensor] | None = None, buffers: Sequence[torch.Tensor] | None = None
) -> Module:
    """The module with other tensors for its own.

    The module itself stays as it is: another thread may be running it.

    Args:
        parameters: in the order of `held`; None for the module's own.
        buffers: likewise; None for copies of the module's own, since a forward may write to them.
    """
    own = held(module)
    others = (
        iter(own[0] if parameters is None else parameters),
        iter([buffer.detach().clone() for buffer in own[1]] if buffers is None else buffers),
    )
    made = _like(module)
    waiting: list[nn.Module] = [made]
    for one in waiting:
        tensors = one.__dict__
        tensors["_parameters"] = {n: None if v is None else next(others[0]) for n, v in one._parameters.items()}
        tensors["_buffers"] = {n: None if v is None else next(others[1]) for n, v in one._buffers.items()}
        tensors["_modules"] = {name: None if child is None else _like(child) for name, child in one._modules.items()}
        waiting += [child for child in one._modules.values() if child is not None]
    return made


def _like(module: Module) -> Module:
    """The same module once more, all it has shared."""
    copy: Module = object.__new__(module.__class__)
    copy.__dict__ = dict(module.__dict__)
    return copy
