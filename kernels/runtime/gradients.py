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
from torch.autograd.graph import _engine_run_backward
from torch.utils._pytree import tree_map_only

from tunebench.kernels.runtime.ordinary import held

Module = TypeVar("Module", bound=nn.Module)

_version_of = attrgetter("_version")


class DifferentiableForward:
    """A module's forward, as one node of the autograd graph for each call.

    Args:
        run: makes the result without a graph, from a tuned module and a call's inputs. The module is not kept, since it
            keeps this, and would outlive the last name for it.
        parameters, buffers: of the module, as `held` has them.
        moved: the places of the buffers that the forward writes to and that may decide its result.
        differentiable: for each tensor of the result whether it needs a gradient; empty where all do.
        autocast: the type that autocast casts to in these calls; None where it is off.
    """

    __slots__ = ("autocast", "buffers", "counted", "differentiable", "moved", "parameters", "run")

    def __init__(
        self,
        run: Callable[..., Any],
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        moved: Sequence[int] = (),
        differentiable: Sequence[bool] = (),
        autocast: torch.dtype | None = None,
    ) -> None:
        self.run, self.parameters, self.buffers, self.moved = run, parameters, buffers, moved
        self.differentiable = differentiable
        self.counted = [buffer for buffer in buffers if not buffer.is_inference()]
        self.autocast = autocast

    def __call__(self, module: Any, *inputs: Any) -> Any:
        """Return the module's result for inputs that the kernel serves."""
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        return _apply(self, module, inputs, *tensors, *self.parameters)


def by_plan(plan: Any) -> Callable[..., Any]:
    """Return the forward of whatever module it is given, under a plan."""

    def run(module: Any, *inputs: Any) -> Any:
        return module.tuned_forward(plan, *inputs)

    return run


class _Node(torch.autograd.Function):
    """One call as autograd sees it: its input tensors, then the parameters."""

    @staticmethod
    def forward(
        ctx: Any, call: DifferentiableForward, module: Any, inputs: tuple[Any, ...], *tensors: torch.Tensor
    ) -> Any:
        # The backward runs the forward again, which has to find what this one found.
        buffers: list[torch.Tensor | None] = [*call.buffers]
        for place in call.moved:
            buffers[place] = call.buffers[place].detach().clone()
        before = [*map(_version_of, call.counted)]
        result = _as_plain(call.run(module, *inputs), tensors)
        if before != [*map(_version_of, call.counted)]:
            # Of what the forward itself writes, the rest decides no result (running statistics in train mode). A change
            # of what it does not write, before the backward, is an error, as it is with the reference.
            same = [one for one, version in zip(call.counted, before, strict=True) if one._version == version]
            for place, one in enumerate(call.buffers):
                if place not in call.moved and not (one.is_inference() or any(one is other for other in same)):
                    buffers[place] = None
        ctx.save_for_backward(*tensors, *buffers)
        if not all(call.differentiable):
            results = [result] if isinstance(result, torch.Tensor) else result
            pairs = zip(results, call.differentiable, strict=True)
            ctx.mark_non_differentiable(*(one for one, is_needed in pairs if not is_needed))
        ctx.call = call, module, inputs
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        saved: tuple[Any, ...] = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        if all(gradient is None for gradient in gradients):
            return (None,) * len(ctx.needs_input_grad)
        call: DifferentiableForward
        call, original, given = ctx.call
        original._note_backward()
        kept = zip(call.buffers, saved[len(needed) :], strict=True)
        buffers = [(buffer if one is None else one).detach().clone() for buffer, one in kept]
        number = len(needed) - len(call.parameters)

        def run(tensors: Sequence[torch.Tensor]) -> Any:
            module: Any = replica(original, tensors[number:], buffers)
            rest = iter(tensors)
            inputs = [next(rest) if isinstance(value, torch.Tensor) else value for value in given]
            return module.reference_forward(*inputs)

        tensors, higher = saved[: len(needed)], torch.is_grad_enabled()
        return (
            None,
            None,
            None,
            *differentiate(run, tensors, needed, gradients, higher=higher, autocast=call.autocast),
        )


def _as_plain(result: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Return a result without its being a view of a tensor that is none of these.

    Autograd refuses that a view which a node made is changed in place; what the reference makes may be.
    """
    if not isinstance(result, torch.Tensor):
        return tree_map_only(torch.Tensor, lambda one: _as_plain(one, tensors), result)
    base = result._base
    return result if base is None or any(base is one or base is one._base for one in tensors) else result.data


# `_Node.apply` without what it does for functorch's sake, under which no kernel runs.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Node).apply


def differentiate(
    run: Callable[[Sequence[torch.Tensor]], Any],
    tensors: Sequence[torch.Tensor],
    needed: Sequence[bool],
    gradients: Sequence[torch.Tensor | None],
    *,
    higher: bool,
    autocast: torch.dtype | None = None,
) -> list[torch.Tensor | None]:
    """Return the gradients of a forward by its tensors; None where none is needed, or the result is independent of one.

    Args:
        run: the forward, by operations that autograd knows: a tensor, or a tuple of tensors.
        needed: for each of the tensors, whether its gradient is.
        gradients: of the results; None of one that nothing depends on.
        higher: whether the gradients have to be differentiable themselves.
        autocast: the type that autocast cast to when the result was made; None where it was off.
    """
    device = next(one.device.type for one in gradients if one is not None)
    with torch.enable_grad(), torch.autocast(device, autocast, enabled=autocast is not None):
        # Views: hooks on the tensors run once, and the graph of a second derivative reaches the tensors.
        views = [_view(tensor, one) for tensor, one in zip(tensors, needed, strict=True)]
        result = run(views)
        results = [result] if isinstance(result, torch.Tensor) else result
        pairs = [(one, by) for one, by in zip(results, gradients, strict=True) if by is not None and one.requires_grad]
        asked = [view for view, one in zip(views, needed, strict=True) if one]
        if not pairs:
            return [None] * len(needed)
        of, by = zip(*pairs, strict=True)
        found = iter(gradients_of(of, asked, by, higher=higher))
    return [next(found) if one else None for one in needed]


def gradients_of(
    of: Sequence[torch.Tensor], asked: Sequence[torch.Tensor], by: Sequence[torch.Tensor], *, higher: bool = False
) -> tuple[torch.Tensor | None, ...]:
    """Return what `torch.autograd.grad` does, without its comparison of shapes: the import of sympy for it takes up to
    two seconds, and who asks has made it."""
    found: tuple[torch.Tensor | None, ...]
    found = _engine_run_backward(tuple(of), tuple(by), higher, higher, tuple(asked), True, accumulate_grad=False)
    return found


def _view(tensor: torch.Tensor, needed: bool) -> torch.Tensor:
    return tensor.view_as(tensor) if needed else tensor.detach()


def replica(
    module: Module, parameters: Sequence[torch.Tensor] | None = None, buffers: Sequence[torch.Tensor] | None = None
) -> Module:
    """Return the module with other tensors for its own.

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
    """Return the same module once more; it shares all but the containers among its attributes."""
    made: Module = object.__new__(module.__class__)
    made.__dict__ = {
        name: value.copy() if type(value) in _CONTAINERS else value for name, value in module.__dict__.items()
    }
    return made


_CONTAINERS = (list, dict, set)
