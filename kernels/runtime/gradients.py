"""Gradients through a tuned forward: its values, and the derivatives of the reference's own operations.

The tuned forward runs as one node of the autograd graph. When a gradient is asked for, the reference's operations run
again on the saved inputs and parameters, and autograd differentiates those. That gives first and higher derivatives of
inputs and parameters exactly as the reference has them, and costs one forward of the reference for each backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

Forward = Callable[..., torch.Tensor]
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class DifferentiableCall:
    """One call of a module whose result needs a gradient.

    Attributes:
        module: whose parameters the result depends on.
        forward: makes the result without a graph, from the call's inputs.
        by_reference: makes it by operations that autograd knows, from a module and inputs.
        inputs: of the call.
        on_backward: called whenever a gradient is asked for.
    """

    module: nn.Module
    forward: Forward
    by_reference: Forward
    inputs: tuple[Any, ...]
    on_backward: Callable[[], None]

    def __call__(self) -> torch.Tensor:
        """The result, as one node of the autograd graph."""
        names, parameters = (
            zip(*self.module.named_parameters(), strict=True) if _has_parameters(self.module) else ((), ())
        )
        tensors = [value for value in self.inputs if isinstance(value, torch.Tensor)]
        result: torch.Tensor = _Node.apply(self, names, len(tensors), *tensors, *parameters)  # type: ignore[no-untyped-call]
        return result


class _Node(torch.autograd.Function):
    """`DifferentiableCall` as autograd sees it: its input tensors, then its parameters."""

    @staticmethod
    def forward(ctx: Any, call: DifferentiableCall, names: Sequence[str], count: int, *tensors: torch.Tensor) -> Any:
        buffers = dict(call.module.named_buffers())
        versions = {name: _version(buffer) for name, buffer in buffers.items()}
        result = call.forward(*call.inputs)
        # What the forward itself writes (running statistics in train mode) no derivative depends on. Of the rest a
        # change before the backward is an error, as it is with the reference.
        kept = {name: buffer for name, buffer in buffers.items() if versions[name] == _version(buffer)}
        ctx.call, ctx.names, ctx.count, ctx.buffers = call, names, count, tuple(kept)
        ctx.save_for_backward(*tensors, *kept.values())
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        (gradient,) = gradients
        saved: tuple[torch.Tensor, ...] = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        ctx.call.on_backward()
        higher = torch.is_grad_enabled()
        tensors, buffers = saved[: len(wanted)], saved[len(wanted) :]
        with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
            # Views: hooks on the tensors run once, and the graph of a second derivative reaches the tensors.
            views = [_view(tensor, one) for tensor, one in zip(tensors, wanted, strict=True)]
            state = {
                **dict(zip(ctx.names, views[ctx.count :], strict=True)),
                **dict(zip(ctx.buffers, buffers, strict=True)),
            }
            module = replica(ctx.call.module, state)
            rest = iter(views[: ctx.count])
            inputs = [next(rest) if isinstance(value, torch.Tensor) else value for value in ctx.call.inputs]
            result = ctx.call.by_reference(module, *inputs)
            asked = [view for view, one in zip(views, wanted, strict=True) if one]
            found = iter(torch.autograd.grad(result, asked, gradient, create_graph=higher, allow_unused=True))
        return (None, None, None, *(next(found) if one else None for one in wanted))


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _view(tensor: torch.Tensor, wanted: bool) -> torch.Tensor:
    return tensor.view_as(tensor) if wanted else tensor.detach()


def replica(module: Module, state: Mapping[str, torch.Tensor] | None = None, prefix: str = "") -> Module:
    """The module with other tensors for its own, by name; buffers are copies, since a forward may write to them.

    The module itself stays as it is: another thread may be running it.

    Args:
        state: parameters and buffers that take the place of the module's; all others are the module's own.
    """
    state = state or {}
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__ = dict(module.__dict__)
    copy.__dict__["_parameters"] = {
        name: None if value is None else state.get(prefix + name, value) for name, value in module._parameters.items()
    }
    copy.__dict__["_buffers"] = {
        name: None if value is None else state.get(prefix + name, value).detach().clone()
        for name, value in module._buffers.items()
    }
    copy.__dict__["_modules"] = {
        name: None if child is None else replica(child, state, f"{prefix}{name}.")
        for name, child in module._modules.items()
    }
    return copy
