"""Tensors derived from weights that a frozen module keeps between calls, and how a change of the weights is noticed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

Derived = TypeVar("Derived")
Source = torch.Tensor | nn.Module
"""What is derived from: a tensor, or all parameters and buffers of a module."""


@dataclass(frozen=True, eq=False)
class _Origin:
    """A source tensor as it was when something was derived from it.

    The tensor and its memory are held: while they are, no other tensor can have that identity, and no other memory
    that address, so that neither can be mistaken for them later.
    """

    tensor: torch.Tensor
    storage: torch.UntypedStorage
    facts: tuple[object, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Origin:
        return cls(tensor, tensor.untyped_storage(), _facts(tensor))

    def is_still(self, tensor: torch.Tensor) -> bool:
        return self.tensor is tensor and self.facts == _facts(tensor)


def _facts(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor._version, tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride()


@dataclass(frozen=True, eq=False)
class _Entry:
    value: Any
    origins: tuple[_Origin, ...]

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        same_number = len(tensors) == len(self.origins)
        return same_number and all(map(_Origin.is_still, self.origins, tensors))


class DerivedTensors:
    """What was derived, by name and settings, each served only while its source tensors are what they were.

    A source is unchanged while it is the same tensor object with the same version (PyTorch counts the in-place
    operations it runs), address, device, dtype, shape and strides, and no optimiser that holds it has stepped (fused
    optimisers are not counted). Those of one name with other settings live side by side; when a source has changed,
    all of the name go.
    """

    def __init__(self) -> None:
        self._entries: dict[str, dict[Hashable, _Entry]] = {}
        self._captured: list[_Entry] = []
        _watch_optimisers(self)

    def get(self, name: str, make: Callable[[], Derived], sources: Sequence[Source], settings: Hashable) -> Derived:
        """What was derived, or is now; see `TunedModule.derived`."""
        tensors = tuple(_tensors(sources))
        if any(tensor.is_inference() for tensor in tensors):
            return make()  # nothing counts the changes of a tensor that was made in inference mode
        entries = self._entries.get(name, {})
        entry = entries.get(settings)
        capturing = any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing()
        if entry is not None and entry.is_of(tensors):
            if capturing:
                self._captured.append(entry)  # the graph reads this memory whenever it is replayed
            value: Derived = entry.value
            return value
        if capturing:
            return make()  # part of the graph: before the first replay its memory holds nothing
        # Looked at before `make` runs: a change in between must not pass for what it was made from.
        origins = tuple(_Origin.of(tensor) for tensor in tensors)
        value = make()
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # the next call may come on another stream
        unchanged = {other: entry for other, entry in entries.items() if entry.is_of(tensors)}
        self._entries[name] = {**unchanged, settings: _Entry(value, origins)}
        return value

    def clear(self) -> None:
        """Forget everything and let go of what it was made from."""
        self._entries = {}
        self._captured = []

    def forget(self, changed: Sequence[torch.Tensor]) -> None:
        """Forget what was made from any of these tensors."""
        if not self._entries:
            return
        gone = {id(tensor) for tensor in changed}
        for name, entries in self._entries.items():
            if any(id(origin.tensor) in gone for entry in entries.values() for origin in entry.origins):
                self._entries = {other: rest for other, rest in self._entries.items() if other != name}

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._entries.values())


def _tensors(sources: Sequence[Source]) -> Iterator[torch.Tensor]:
    for source in sources:
        if isinstance(source, torch.Tensor):
            yield source
        else:
            yield from source.parameters()
            yield from source.buffers()


_watched: weakref.WeakSet[DerivedTensors] = weakref.WeakSet()
_hooked = False


def _watch_optimisers(cache: DerivedTensors) -> None:
    """Forget what was derived from parameters that an optimiser steps: fused ones write without PyTorch counting it."""
    global _hooked  # noqa: PLW0603 - one hook in PyTorch's own global list, from the first frozen module on
    _watched.add(cache)
    if not _hooked:
        register_optimizer_step_post_hook(_after_step)
        _hooked = True


def _after_step(optimiser: torch.optim.Optimizer, *_: object) -> None:
    watched = [cache for cache in _watched if len(cache)]
    if watched:
        stepped = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        for cache in watched:
            cache.forget(stepped)
