"""Gradients of a module, in the ways in which a training loop asks for them."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.comparison import real
from tunebench.tuner.gate.truth import (
    buffers_of,
    device_of_inputs,
    named_tensors,
    seeded,
    state_of,
    under_autocast,
)
from tunebench.tuner.gate.values import Values, cloned, mapped


class Incoming(enum.StrEnum):
    """The gradient of the output: how it lies in memory, or what it holds."""

    DENSE = "dense"
    STRIDED = "strided"
    """Every other element of its memory."""
    EXPANDED = "expanded"
    """One number for all elements: a step of zero, as `output.sum()` has it."""
    TRANSPOSED = "transposed"
    """Its axes lie in memory in the opposite order."""
    ZEROS = "zeros"
    """Zeros in the whole first row, and in every third place of the others."""
    INFINITE = "infinite"
    """An infinity in one place, as a loss that overflows has it."""


class Trained(enum.StrEnum):
    """Which parameters need a gradient."""

    ALL = "all"
    SOME = "some"
    """Every other one: the rest is frozen."""
    OTHERS = "others"
    """The parameters that `SOME` freezes need one, such as the bias alone of a weight and a bias."""
    NONE = "none"


@dataclass(frozen=True)
class Backward:
    """How gradients are asked for.

    Attributes:
        inputs: inputs need one.
        parameters: which of them need one.
        incoming: the gradient of the output.
        course: what is done, a letter each: `f` a forward that records gradients, `b` the backward of the oldest one
            that is left, `r` the same where its graph is retained, `a` one backward of all that are left, `w` a change
            in place of the newest output, `n` a forward that records no gradients, `i` one in inference mode, `e` and
            `t` eval and train mode.
        adds_up: the gradients of all backwards are added up; else each has its own.
        second: gradients of a weighted sum of the gradients; whatever `incoming` says, it is dense.
        autocast: the type that forwards run under autocast to; the backward is outside of it.
        wide: module and inputs are in float64 first.
        seed: of the numbers in the gradient of the output, other ones in each backward.
    """

    inputs: bool = True
    parameters: Trained = Trained.ALL
    incoming: Incoming = Incoming.DENSE
    course: str = "fb"
    adds_up: bool = False
    second: bool = False
    autocast: torch.dtype | None = None
    wide: bool = False
    seed: int = 0


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
    before = seeded(device, how.seed)
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
    for step, letter in enumerate(how.course):
        weigh = _Weights(how.seed + step)
        if letter in "et":
            module.train(letter == "t")
        elif letter == "i":
            with torch.inference_mode():
                module(*inputs)
        elif letter == "w":
            for output in waiting[-1][1]:
                output.mul_(0.5).add_(1.0)
        elif letter in "bra":
            call, outputs = waiting[0]
            if letter == "a":
                call, outputs = "", [output for _, outputs in waiting for output in outputs]
            _differentiate(outputs, leaves, how, weigh, retain=letter == "r")
            waiting = waiting if letter == "r" else waiting[1:] if letter == "b" else []
            if not how.adds_up:
                found |= _taken(leaves, f"{call}, once" if letter == "r" else call)
        else:
            number += 1
            call = f" of call {number}" if calls > 1 else ""
            with torch.set_grad_enabled(letter == "f"), under_autocast(how.autocast, inputs):
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


def _differentiate(
    outputs: Sequence[torch.Tensor], leaves: Mapping[str, torch.Tensor], how: Backward, weigh: _Weights, *, retain: bool
) -> None:
    if how.second:
        total = _summed_gradients(outputs, [leaf for leaf in leaves.values() if leaf.requires_grad], weigh)
    else:
        # Outputs under autocast have other types than the rest: the sum is in float64.
        total = torch.stack([_summed(output, how.incoming, weigh).double() for output in outputs]).sum()
    if total.requires_grad:
        total.backward(retain_graph=retain)  # type: ignore[no-untyped-call]


def _summed_gradients(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], weigh: _Weights) -> torch.Tensor:
    """A weighted sum of gradients, to be derived once more."""
    total = torch.stack([(output * weigh(output)).sum() for output in outputs]).sum()
    first = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
    sums = [(real(one) * weigh(real(one))).sum() for one in first if one is not None and one.requires_grad]
    return torch.stack(sums).sum() if sums else total.detach()


def _summed(output: torch.Tensor, incoming: Incoming, weigh: _Weights) -> torch.Tensor:
    """A sum whose gradient by the output is one number for all elements, or what a hook makes of it.

    A gradient that is given to `backward` is compared by sympy, whose import takes a second.
    """
    output = output.clone()  # the hook leaves alone what is made of this one, or shares its memory
    if incoming is not Incoming.EXPANDED:
        gradient = _INCOMING[incoming](weigh(output))
        output.register_hook(lambda _: gradient)  # type: ignore[no-untyped-call]
    return output.sum()


def _transposed(gradient: torch.Tensor) -> torch.Tensor:
    axes = tuple(reversed(range(gradient.dim())))
    return gradient.permute(axes).contiguous().permute(axes)


def _with_zeros(gradient: torch.Tensor) -> torch.Tensor:
    gradient.flatten()[::3] = 0.0
    gradient[:1] = 0.0
    return gradient


def _with_infinity(gradient: torch.Tensor) -> torch.Tensor:
    gradient.view(-1)[gradient.numel() // 2 : gradient.numel() // 2 + 1] = math.inf
    return gradient


_INCOMING: Mapping[Incoming, Callable[[torch.Tensor], torch.Tensor]] = {
    Incoming.DENSE: lambda gradient: gradient,
    Incoming.STRIDED: lambda gradient: torch.stack([gradient, gradient], dim=-1)[..., 0],
    Incoming.TRANSPOSED: _transposed,
    Incoming.ZEROS: _with_zeros,
    Incoming.INFINITE: _with_infinity,
}
"""Each makes the incoming gradient of a dense one, which it may overwrite."""


@contextmanager
def _frozen(module: nn.Module, trained: Trained) -> Iterator[None]:
    parameters = list(module.parameters())
    before = [parameter.requires_grad for parameter in parameters]
    for number, parameter in enumerate(parameters):
        if number % 2 not in _TRAINED[trained]:
            parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, needed in zip(parameters, before, strict=True):
            parameter.requires_grad_(needed)


_TRAINED: Mapping[Trained, Sequence[int]] = {
    Trained.ALL: (0, 1),
    Trained.SOME: (0,),
    Trained.OTHERS: (1,),
    Trained.NONE: (),
}
"""The parameters that need a gradient, by the remainder of their number by 2."""


class _Weights:
    """Makes numbers of both signs for the elements of one tensor after the other; they follow from a seed."""

    def __init__(self, seed: int) -> None:
        self._seeds = itertools.count(100 * seed)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Make numbers for these elements."""
        generator = torch.Generator(tensor.device).manual_seed(next(self._seeds))
        steps = torch.randint(7, tensor.shape, generator=generator, device=tensor.device)
        return steps.to(tensor.dtype) - 2.5
