"""Gradients through a tuned forward: its values, and the derivatives of the reference's own operations.

The tuned forward runs as one node of the autograd graph. When a gradient is asked for, the reference's operations run
again on the saved inputs and parameters, and autograd differentiates those. That gives first and higher derivatives of
inputs and parameters exactly as the reference has them, and costs one forward of the reference for each backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from tunebench.kernels.runtime.ordinary import Call, held

Forward = Callable[..., torch.Tensor]
Module = TypeVar("Module", bound=nn.Module)


class DifferentiableCall(NamedTuple):
    """One call of a module whose result needs a gradient.

    Attributes:
        module: whose parameters the result depends on.
        forward: makes the result without a graph, from the call's inputs.
        by_reference: makes it by operations that autograd knows, from a module and inputs.
        inputs: of the call.
        call: what was seen of it.
        on_backward: called whenever a gradient is asked for.
    """

    module: nn.Module
    forward: Forward
    by_reference: Forward
    inputs: tuple[Any, ...]
    call: Call
    on_backward: Callable[[], None]

    def __call__(self) -> torch.Tensor:
        """The result, as one node of the autograd graph."""
        result: torch.Tensor = _apply(self, *self.call.inputs, *self.call.parameters)
        return result


class _Node(torch.autograd.Function):
    """`DifferentiableCall` as autograd sees it: its input tensors, then its parameters."""

    @staticmethod
    def forward(ctx: Any, call: DifferentiableCall, *tensors: torch.Tensor) -> Any:
        buffers = call.call.buffers
        versions = [_version(buffer) for buffer in buffers]
        result = call.forward(*call.inputs)
        # What the forward itself writes (running statistics in train mode) no derivative depends on. Of the rest a
        # change before the backward is an error, as it is with the reference.
        read = [at for at, buffer in enumerate(buffers) if versions[at] == _version(buffer)]
        ctx.call, ctx.read = call, read
        ctx.save_for_backward(*tensors, *(buffers[at] for at in read))
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        (gradient,) = gradients
        saved: tuple[torch.Tensor, ...] = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        differentiated: DifferentiableCall = ctx.call
        call = differentiated.call
        differentiated.on_backward()
        buffers = [buffer.detach().clone() for buffer in call.buffers]
        for at, buffer in zip(ctx.read, saved[len(needed) :], strict=True):
            buffers[at] = buffer.detach().clone()

        def run(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            module = replica(differentiated.module, tensors[len(call.inputs) :], buffers)
            rest = iter(tensors)
            inputs = [next(rest) if isinstance(value, torch.Tensor) else value for value in differentiated.inputs]
            return differentiated.by_reference(module, *inputs)

        return (None, *differentiate(run, saved[: len(needed)], needed, gradient, higher=torch.is_grad_enabled()))


# `_Node.apply` without what it does for functorch's sake, under which no kernel runs.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Node).apply


def differentiate(
    run: Callable[[Sequence[torch.Tensor]], torch.Tensor],
    tensors: Sequence[torch.Tensor],
    needed: Sequence[bool],
    gradient: torch.Tensor,
    *,
    higher: bool,
) -> list[torch.Tensor | None]:
    """The gradients of a forward by its tensors; None where none is needed, or where the result does not depend on one.

    Args:
        run: the forward, by operations that autograd knows.
        needed: for each of the tensors, whether its gradient is.
        gradient: of the result.
        higher: whether the gradients have to be differentiable themselves.
    """
    with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
        # Views: hooks on the tensors run once, and the graph of a second derivative reaches the tensors.
        views = [_view(tensor, one) for tensor, one in zip(tensors, needed, strict=True)]
        result = run(views)
        asked = [view for view, one in zip(views, needed, strict=True) if one]
        found = iter(torch.autograd.grad(result, asked, gradient, create_graph=higher, allow_unused=True))
    return [next(found) if one else None for one in needed]


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


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
