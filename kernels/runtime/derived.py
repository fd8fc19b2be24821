"""Tensors derived from weights that a frozen module keeps between calls, and how a change of the weights is noticed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tunebench.kernels.runtime.ordinary import held
from tunebench.kernels.runtime.snapshot import Snapshot

Derived = TypeVar("Derived")
Source = torch.Tensor | nn.Module
"""The source of a derived tensor: a tensor, or a module for all of its parameters and buffers."""


_is_cuda = attrgetter("is_cuda")


class Keeper(Protocol):
    """Whoever keeps what is derived from weights, as a `TunedModule` does while it is frozen."""

    @property
    def is_frozen(self) -> bool:
        """Whether it is kept between calls."""

    def derived(
        self, name: str, make: Callable[[], Derived], sources: Sequence[Source], settings: Hashable = ()
    ) -> Derived:
        """See `TunedModule.derived`."""


class KeeperOf(NamedTuple):
    """A keeper whose names are one part's own, such as a layer's, of a module that has several of its kind."""

    keeper: Keeper
    part: str

    @property
    def is_frozen(self) -> bool:
        """Whether it is kept between calls."""
        return self.keeper.is_frozen

    def derived(
        self, name: str, make: Callable[[], Derived], sources: Sequence[Source], settings: Hashable = ()
    ) -> Derived:
        """See `TunedModule.derived`."""
        return self.keeper.derived(f"{name} of {self.part}", make, sources, settings)


class KeepsNothing:
    """A keeper of nothing: for views of weights, each of which is another tensor."""

    is_frozen = False

    def derived(
        self, name: str, make: Callable[[], Derived], sources: Sequence[Source], settings: Hashable = ()
    ) -> Derived:
        """Make it."""
        del name, sources, settings  # under which others keep it
        return make()


class DerivedTensors:
    """Derived values by name and settings, each used only while its source tensors are what they were.

    A source is unchanged while it is the same tensor object with the same version (PyTorch counts the in-place
    operations it runs), address, device, dtype, shape and strides, and no optimiser that holds it has stepped (fused
    optimisers are not counted). Those of one name with other settings live side by side; when a source has changed,
    all of the name go.
    """

    def __init__(self) -> None:
        self._entries: dict[str, dict[Hashable, tuple[Snapshot, Any]]] = {}
        self._captured: list[Any] = []
        _watch_optimisers(self)

    def get(self, name: str, make: Callable[[], Derived], sources: Sequence[Source], settings: Hashable) -> Derived:
        """Return the value kept under a name, or make it now; see `TunedModule.derived`."""
        tensors = tuple(_tensors(sources))
        if any(map(torch.Tensor.is_inference, tensors)):
            return make()  # nothing counts the changes of a tensor that was made in inference mode
        entries = self._entries.get(name, {})
        entry = entries.get(settings)
        capturing = any(map(_is_cuda, tensors)) and torch.cuda.is_current_stream_capturing()
        if entry is not None and entry[0].has(tensors):
            if capturing:
                self._captured.append(entry)  # the graph reads this memory whenever it is replayed
            kept: Derived = entry[1]
            return kept
        if capturing:
            return make()  # part of the graph: before the first replay its memory holds nothing
        # Looked at before `make` runs: a change in between must not pass for what it was made from.
        snapshot = Snapshot(values=tensors)
        value = make()
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # the next call may come on another stream
        unchanged = {other: one for other, one in entries.items() if one[0].has(tensors)}
        self._entries[name] = {**unchanged, settings: (snapshot, value)}
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
            if any(id(tensor) in gone for snapshot, _ in entries.values() for tensor in snapshot.tensors):
                self._entries = {other: rest for other, rest in self._entries.items() if other != name}

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._entries.values())


def _tensors(sources: Sequence[Source]) -> Iterator[torch.Tensor]:
    for source in sources:
        if isinstance(source, torch.Tensor):
            yield source
        else:
            for tensors in held(source):
                yield from tensors


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
