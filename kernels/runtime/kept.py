"""Forms that a frozen module keeps between calls, and how a change to what they were made from is noticed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

Form = TypeVar("Form")
Source = torch.Tensor | nn.Module
"""What a form is made from: a tensor, or all parameters and buffers of a module."""


@dataclass(frozen=True, eq=False)
class _Origin:
    """A source tensor as it was when a form was made from it.

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
class _Kept:
    value: Any
    origins: tuple[_Origin, ...]

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        same_number = len(tensors) == len(self.origins)
        return same_number and all(map(_Origin.is_still, self.origins, tensors))


class KeptForms:
    """Forms by name and settings, each served only while its source tensors are what they were.

    A source is unchanged while it is the same tensor object with the same version (PyTorch counts the in-place
    operations it runs), address, device, dtype, shape and strides, and no optimiser that holds it has stepped (fused
    optimisers are not counted). Forms of one name with other settings live side by side; when a source has changed,
    all forms of the name go.
    """

    def __init__(self) -> None:
        self._forms: dict[str, dict[Hashable, _Kept]] = {}
        self._captured: list[_Kept] = []
        _watch_optimisers(self)

    def get(self, name: str, make: Callable[[], Form], sources: Sequence[Source], settings: Hashable) -> Form:
        """The form, made now unless it is kept; see `TunedModule.kept`."""
        tensors = tuple(_tensors(sources))
        if any(tensor.is_inference() for tensor in tensors):
            return make()  # nothing counts the changes of a tensor that was made in inference mode
        forms = self._forms.get(name, {})
        kept = forms.get(settings)
        capturing = any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing()
        if kept is not None and kept.is_of(tensors):
            if capturing:
                self._captured.append(kept)  # the graph reads this memory whenever it is replayed
            value: Form = kept.value
            return value
        if capturing:
            return make()  # part of the graph: before the first replay its memory holds nothing
        # Looked at before `make` runs: a change in between must not pass for what the form was made from.
        origins = tuple(_Origin.of(tensor) for tensor in tensors)
        value = make()
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # the next call may come on another stream
        unchanged = {other: form for other, form in forms.items() if form.is_of(tensors)}
        self._forms[name] = {**unchanged, settings: _Kept(value, origins)}
        return value

    def clear(self) -> None:
        """Forget all forms and let go of what they were made from."""
        self._forms = {}
        self._captured = []

    def forget(self, changed: Sequence[torch.Tensor]) -> None:
        """Forget the forms that were made from any of these tensors."""
        if not self._forms:
            return
        gone = {id(tensor) for tensor in changed}
        for name, forms in self._forms.items():
            if any(id(origin.tensor) in gone for form in forms.values() for origin in form.origins):
                self._forms = {other: kept for other, kept in self._forms.items() if other != name}

    def __len__(self) -> int:
        return sum(len(forms) for forms in self._forms.values())


def _tensors(sources: Sequence[Source]) -> Iterator[torch.Tensor]:
    for source in sources:
        if isinstance(source, torch.Tensor):
            yield source
        else:
            yield from source.parameters()
            yield from source.buffers()


_watched: weakref.WeakSet[KeptForms] = weakref.WeakSet()
_hooked = False


def _watch_optimisers(forms: KeptForms) -> None:
    """Forget forms of parameters that an optimiser steps: fused ones write without PyTorch counting it."""
    global _hooked  # noqa: PLW0603 - one hook in PyTorch's own global list, from the first frozen module on
    _watched.add(forms)
    if not _hooked:
        register_optimizer_step_post_hook(_after_step)
        _hooked = True


def _after_step(optimiser: torch.optim.Optimizer, *_: object) -> None:
    watched = [forms for forms in _watched if len(forms)]
    if watched:
        stepped = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        for forms in watched:
            forms.forget(stepped)
