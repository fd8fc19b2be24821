"""Where the reference's models and inputs come from: a file run in this process, or in one of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from tunebench.tuner.gate.effort import Limit, elements_made
from tunebench.tuner.gate.indices import IndicesInRange
from tunebench.tuner.gate.memory import room_for
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.values import Values
from tunebench.tuner.kernel import Mode, prepare_model
from tunebench.tuner.reference import Reference

_ROOM_BYTES = 4 << 30
"""A call at sizes that nobody knows may take so much of a GPU's memory."""

Sizes = Mapping[str, int | float]
"""The numeric constants of a reference's file, and the numbers without a name that inputs and models are made from."""


def capped(sizes: Sizes, cap: int) -> Sizes:
    """The same with no whole number above the cap."""
    return {name: min(size, cap) if isinstance(size, int) else size for name, size in sizes.items()}


def divided(sizes: Sizes, cap: int) -> Sizes:
    """The same with its largest whole number within the cap, and others in proportion that are not too small for it.

    What depends on a ratio, such as the features of a group, is as it was.
    """
    largest = max((size for size in sizes.values() if isinstance(size, int)), default=cap)
    divisor = -(-largest // cap)
    return {
        name: size // divisor if isinstance(size, int) and size >= 2 * divisor else size for name, size in sizes.items()
    }


class Source:
    """A reference's file at some sizes, on one device.

    Attributes:
        is_remote: it runs in another process, so that inputs and answers are passed on by their bytes.
    """

    is_remote: ClassVar = False

    def __init__(self, reference: Reference, device: torch.device) -> None:
        self.reference = reference
        self.device = device

    @property
    def sizes(self) -> Sizes:
        """The file's numbers after any change."""
        return self.reference.numbers

    def resized(self, sizes: Sizes) -> Source:
        """Return the same at other sizes.

        Raises:
            Exception: whatever the file raises at these sizes, also when it makes a model or inputs.
        """
        source = Source(self.reference.resized(sizes), self.device)
        source.reference.make_model(0, self.device)
        source.inputs(0)
        return source

    def inputs(self, seed: int) -> tuple[Any, ...]:
        """Draw one call's inputs from this seed."""
        return self.reference.make_inputs(seed, self.device)

    def module(self, mode: Mode, state: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
        """Make the reference's module from one seed, with these weights, in this mode."""
        return prepare_model(self.reference, mode, self.device, None, state)

    def model(self, mode: Mode, state: Mapping[str, torch.Tensor] | None = None) -> Model:
        """Make the same as a model under test."""
        watched = IndicesInRange if self.device.type == "cuda" else contextlib.nullcontext
        return Model(self.module(mode, state), watched=watched)

    def revive(self) -> bool:
        """Run the file in a new process, in place of one that is gone; return whether it has one of its own."""
        return False

    def elements(self, changes: Sizes) -> tuple[int, int]:
        """Count the elements of the output and of all parameters at other sizes, without memory for them."""
        meta = torch.device("meta")
        source = self.reference.resized(changes)
        model = source.make_model(0, meta)
        output = Values.of(model(*source.make_inputs(0, meta)))
        elements = sum(tensor.numel() for tensor in output.tensors.values())
        return elements, sum(parameter.numel() for parameter in model.parameters())

    def effort(self, changes: Sizes, limit: Limit, *, is_known: bool = False) -> int | None:
        """Count the elements that all operations of a call make at other sizes; None where it is beyond the limit.

        Args:
            is_known: it is known not to be too much, so that the reference may simply run.
        """

        def call(place: torch.device) -> None:
            source = self.reference.resized({**self.sizes, **changes})
            source.make_model(0, place)(*source.make_inputs(0, place))

        if is_known:
            return elements_made(call, [self.device], limit)
        meta = torch.device("meta")
        if self.device.type == "cuda":
            with room_for(_ROOM_BYTES, self.device):  # where all is over soon, and no compiler is imported
                return elements_made(call, [self.device, meta], limit)
        return elements_made(call, [meta, self.device], limit)
