"""PyTorch's own guards, which tell in one go whether anything has changed; and what takes their place without them.

They belong to its compiler and are private to it. What takes their place is Python, as strict and several times as
slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tunebench.kernels.runtime.ordinary import why_not_run

try:
    from torch._C._dynamo.guards import TensorGuards
    from torch._C._dynamo.guards import dict_version as _dict_version

    _dict_version({})
except (ImportError, RuntimeError):
    TensorGuards = _dict_version = None  # type: ignore[assignment, misc]

SameTensors = Callable[..., bool]


def same_tensors(*tensors: torch.Tensor) -> SameTensors:
    """What says of as many other tensors whether they are like these, and PyTorch in the state that it is in now.

    That is: of the same type, dtype, device, shape and strides, requiring a gradient or not; and the same happens to
    operations on them (modes, autocast, transforms, tracing).
    """
    if TensorGuards is None:
        return same_tensors_in_python(*tensors)
    check: SameTensors = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def same_tensors_in_python(*tensors: torch.Tensor) -> SameTensors:
    """As `same_tensors`."""
    expected = _state(tensors)
    return lambda *others: _state(others) == expected


def _state(tensors: tuple[Any, ...]) -> tuple[object, ...]:
    modes = why_not_run(), torch._C._is_any_autocast_enabled(), torch.is_inference_mode_enabled()
    return *modes, *map(_kind, tensors)


def _kind(value: Any) -> tuple[object, ...]:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return type(value), None
    marks = value.requires_grad, value.is_neg(), value.is_conj(), value.is_inference()
    return type(value), value.dtype, value.device, value.shape, value.stride(), *marks


class Content:
    """What a dictionary held, by identity: equal to another where nothing was set, replaced or removed."""

    __slots__ = ("_keys", "_values")

    def __init__(self, dictionary: dict[Any, Any]) -> None:
        self._keys, self._values = [*dictionary], [*dictionary.values()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Content) or self._keys != other._keys:
            return False
        return all(one is two for one, two in zip(self._values, other._values, strict=True))

    __hash__ = None  # type: ignore[assignment]


version_of: Callable[[dict[Any, Any]], object] = Content if _dict_version is None else _dict_version
"""A dictionary's version: two are equal only where nothing was set in it, replaced or removed in between."""
