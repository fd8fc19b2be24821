"""Gradients of a module, in the ways in which a training loop asks for them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.truth import device_of_inputs, named_tensors
from tunebench.tuner.gate.values import Values, cloned, mapped
from tunebench.tuner.reference import seed_generators


class Incoming(enum.StrEnum):
    """How the gradient of the output lies in memory."""

    DENSE = "dense"
    STRIDED = "strided"
    """Every other element of its memory."""
    EXPANDED = "expanded"
    """One number for all elements: a step of zero, as `output.sum()` has it."""


class Trained(enum.StrEnum):
    """Which parameters need a gradient."""

    ALL = "all"
    SOME = "some"
    """Every other one: the rest is frozen."""
    NONE = "none"


@dataclass(frozen=True)
class Backward:
    """How gradients are asked for.

    Attributes:
        inputs: inputs need one.
        parameters: which of them need one.
        incoming: how the gradient of the output lies in memory.
        times: forward and backward so many times, gradients added up.
        second: gradients of a weighted sum of the gradients; whatever `incoming` says, it is dense.
        after_inference: a call in inference mode comes before.
    """

    inputs: bool = True
    parameters: Trained = Trained.ALL
    incoming: Incoming = Incoming.DENSE
    times: int = 1
    second: bool = False
    after_inference: bool = False


OUTPUT = "the "
"""In front of the path of a part of the output, among gradients by name."""


def gradients_of(module: nn.Module, drawn: Sequence[Any], how: Backward) -> dict[str, torch.Tensor]:
    """Gradients by name of a weighted sum of the output, and after `OUTPUT` the parts of the output that they are of;
    nothing where the output needs none."""
    module.zero_grad()
    inputs = [mapped(value, lambda tensor: tensor.detach().clone()) for value in drawn]
    if how.after_inference:
        with torch.inference_mode():
            module(*inputs)
    leaves: dict[str, torch.Tensor] = {}
    if how.inputs:
        floating = {name: tensor for name, tensor in named_tensors(inputs).items() if tensor.is_floating_point()}
        leaves |= {name: tensor.requires_grad_() for name, tensor in floating.items()}
    with torch.enable_grad(), _frozen(module, how.parameters):
        leaves |= dict(module.named_parameters())
        try:
            for _ in range(how.times):
                seed_generators(0, device_of_inputs(inputs))
                # A module that changes its inputs may not do so to leaves.
                given = cloned(inputs)
                parts = Values.of(module(*given)).tensors
                outputs = [tensor for tensor in parts.values() if tensor.requires_grad]
                if not outputs:
                    return {}
                if how.second:
                    total = _summed_gradients(outputs, [leaf for leaf in leaves.values() if leaf.requires_grad])
                else:
                    total = torch.stack([_summed(output, how.incoming) for output in outputs]).sum()
                if total.requires_grad:
                    total.backward()  # type: ignore[no-untyped-call]
        finally:
            found = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
            module.zero_grad()
    return found | {f"{OUTPUT}{path}": part.detach() for path, part in parts.items() if part.is_floating_point()}


def _summed_gradients(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """A weighted sum of gradients, to be derived once more."""
    total = torch.stack([(output * _weights(output)).sum() for output in outputs]).sum()
    first = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
    sums = [(one * _weights(one)).sum() for one in first if one is not None and one.requires_grad]
    return torch.stack(sums).sum() if sums else total.detach()


def _summed(output: torch.Tensor, incoming: Incoming) -> torch.Tensor:
    """A sum whose gradient by the output is one number for all elements, or what a hook makes of it.

    A gradient that is given to `backward` is compared by sympy, whose import takes a second.
    """
    if incoming is not Incoming.EXPANDED:
        weights = _weights(output)
        strided = torch.stack([weights, weights], dim=-1)[..., 0]
        output.register_hook(lambda _: strided if incoming is Incoming.STRIDED else weights)  # type: ignore[no-untyped-call]
    return output.sum()


@contextmanager
def _frozen(module: nn.Module, trained: Trained) -> Iterator[None]:
    parameters = list(module.parameters())
    before = [parameter.requires_grad for parameter in parameters]
    for number, parameter in enumerate(parameters):
        if trained is Trained.NONE or (trained is Trained.SOME and number % 2):
            parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, needed in zip(parameters, before, strict=True):
            parameter.requires_grad_(needed)


def _weights(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers that differ from one element to the next, of both signs."""
    steps = torch.arange(tensor.numel(), device=tensor.device).remainder(7) - 2.5
    return steps.to(tensor.dtype).reshape(tensor.shape)
