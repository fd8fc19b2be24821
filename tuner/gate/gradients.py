"""Gradients of a module, in the ways in which a training loop asks for them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.comparison import real
from tunebench.tuner.gate.truth import buffers_of, device_of_inputs, named_tensors, seeded, state_of
from tunebench.tuner.gate.values import Values, cloned, mapped


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
        course: what is done, a letter each: `f` a forward that records gradients, `b` the backward of the oldest one
            that is left, `n` a forward that records none, `i` one in inference mode, `e` and `t` eval and train mode.
        adds_up: the gradients of all backwards are added up; else each has its own.
        second: gradients of a weighted sum of the gradients; whatever `incoming` says, it is dense.
    """

    inputs: bool = True
    parameters: Trained = Trained.ALL
    incoming: Incoming = Incoming.DENSE
    course: str = "fb"
    adds_up: bool = False
    second: bool = False


OUTPUT = "the "
"""In front of the path of a part of the output, among gradients by name."""


@dataclass(frozen=True)
class Gradients:
    """The results of a course.

    Attributes:
        found: gradients by name of a weighted sum of the output, and after `OUTPUT` the parts of the output that they
            are of, each with the number of its call where there are several; nothing where the output needs none.
            Complex numbers are pairs.
        buffers: the module's buffers at the end.
        random_state: of the generators that were seeded before the course, at its end.
        draws: the module draws random numbers.
    """

    found: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    random_state: torch.Tensor
    draws: bool


def gradients_of(module: nn.Module, drawn: Sequence[Any], how: Backward) -> Gradients:
    """Go through a course with a module, whose buffers and mode move as they do in any call."""
    module.zero_grad()
    inputs = [mapped(value, lambda tensor: tensor.detach().clone()) for value in drawn]
    device = device_of_inputs(inputs)
    leaves: dict[str, torch.Tensor] = {}
    if how.inputs:
        tensors = named_tensors(inputs).items()
        continuous = {name: tensor for name, tensor in tensors if tensor.is_floating_point() or tensor.is_complex()}
        leaves |= {name: tensor.requires_grad_() for name, tensor in continuous.items()}
    before = seeded(device, 0)
    with torch.enable_grad(), _frozen(module, how.parameters):
        leaves |= dict(module.named_parameters())
        try:
            found = _go_through(module, inputs, leaves, how)
        finally:
            module.zero_grad()
    after = state_of(device)
    return Gradients(found, buffers_of(module), after, not torch.equal(before, after))


def _go_through(
    module: nn.Module, inputs: Sequence[Any], leaves: Mapping[str, torch.Tensor], how: Backward
) -> dict[str, torch.Tensor]:
    """Return gradients and outputs by name; nothing once no output of a forward that records gradients needs one."""
    found: dict[str, torch.Tensor] = {}
    waiting: list[tuple[str, list[torch.Tensor]]] = []
    number, calls = 0, sum(map(how.course.count, "fn"))
    for letter in how.course:
        if letter in "et":
            module.train(letter == "t")
        elif letter == "i":
            with torch.inference_mode():
                module(*inputs)
        elif letter == "b":
            call, outputs = waiting.pop(0)
            _differentiate(outputs, leaves, how)
            if not how.adds_up:
                found |= _taken(leaves, call)
        else:
            number += 1
            call = f" of call {number}" if calls > 1 else ""
            with torch.set_grad_enabled(letter == "f"):
                # A module that changes its inputs may not do so to leaves.
                parts = Values.of(module(*cloned(inputs))).mapped(real).tensors
            floating = {path: part for path, part in parts.items() if part.is_floating_point()}
            found |= {f"{OUTPUT}{path}{call}": part.detach().clone() for path, part in floating.items()}
            if letter == "f":
                outputs = [part for part in parts.values() if part.requires_grad]
                if not outputs:
                    return {}
                waiting.append((call, outputs))
    return found | (_taken(leaves, "") if how.adds_up else {})


def _taken(leaves: Mapping[str, torch.Tensor], call: str) -> dict[str, torch.Tensor]:
    """The gradients of the leaves, which have none then."""
    found = {f"{name}{call}": real(leaf.grad) for name, leaf in leaves.items() if leaf.grad is not None}
    for leaf in leaves.values():
        leaf.grad = None
    return found


def _differentiate(outputs: Sequence[torch.Tensor], leaves: Mapping[str, torch.Tensor], how: Backward) -> None:
    if how.second:
        total = _summed_gradients(outputs, [leaf for leaf in leaves.values() if leaf.requires_grad])
    else:
        total = torch.stack([_summed(output, how.incoming) for output in outputs]).sum()
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]


def _summed_gradients(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """A weighted sum of gradients, to be derived once more."""
    total = torch.stack([(output * _weights(output)).sum() for output in outputs]).sum()
    first = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
    sums = [(real(one) * _weights(real(one))).sum() for one in first if one is not None and one.requires_grad]
    return torch.stack(sums).sum() if sums else total.detach()


def _summed(output: torch.Tensor, incoming: Incoming) -> torch.Tensor:
    """A sum whose gradient by the output is one number for all elements, or what a hook makes of it.

    A gradient that is given to `backward` is compared by sympy, whose import takes a second.
    """
    output = output.view_as(output)  # the hook leaves alone what comes from a part that is made of this one
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
