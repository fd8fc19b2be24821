"""The problem that a call is, by the names that a kernel gives to the dimensions of its tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tunebench.kernels.runtime.ordinary import held
from tunebench.tuner.problem import OUTPUT, Axes

AcceptsLayout = Callable[[str, torch.Tensor], bool]
"""Whether a kernel reads that tensor, which is not contiguous, as it lies in memory."""


class UnservedError(Exception):
    """Why no kernel serves a call: one line."""


def sizes_of(
    module: nn.Module, inputs: Mapping[str, Any], axes: Axes | None, accepts_layout: AcceptsLayout
) -> tuple[dict[str, int], torch.Tensor]:
    """The sizes of a call's axes, and a tensor whose dtype and device all others have.

    Args:
        inputs: by their names in the reference's `forward`.
        axes: what the kernel calls dimensions; None for `x_0`, `x_1` and so on for an input `x`.

    Raises:
        UnservedError: an input is none of a kernel that takes dense tensors of one dtype and plain numbers.
    """
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if axes is not None:
        for name in inputs:
            if name in tensors and name not in axes:
                raise UnservedError(f"'{name}' is a tensor, of which the kernel names no axes")
            if name in axes and name not in tensors:
                raise UnservedError(f"'{name}' is a {type(inputs[name]).__name__}, not a tensor")
    for name in inputs.keys() - tensors.keys():
        if not isinstance(inputs[name], int | float | None):
            raise UnservedError(f"'{name}' is a {type(inputs[name]).__name__}, not a number")
    if not tensors:
        raise UnservedError("no input is a tensor")
    first = next(iter(tensors.values()))
    sizes: dict[str, int] = {}
    for name, names in (axes if axes is not None else dict.fromkeys(tensors)).items():
        if name == OUTPUT:
            continue
        tensor = tensors[name] if name in tensors else _attribute(module, name)
        if tensor is None:
            raise UnservedError(f"the model has no '{name}'")
        _require_readable(name, tensor, first, isinstance(names, str), accepts_layout)
        for axis, size in _named_sizes(name, tensor, names):
            if sizes.setdefault(axis, size) != size:
                raise UnservedError(f"'{axis}' is {size} in '{name}' and {sizes[axis]} before it")
    _require_alike(module, first, accepts_layout)
    return sizes, first


def _attribute(module: nn.Module, path: str) -> torch.Tensor | None:
    try:
        found: torch.Tensor | None = operator.attrgetter(path)(module)
    except AttributeError:
        raise UnservedError(
            f"the kernel's axes name '{path}', which is neither an input of forward nor a parameter or buffer"
        ) from None
    if not isinstance(found, torch.Tensor | None):
        raise UnservedError(f"'{path}' is a {type(found).__name__}, not a tensor")
    return found


def _named_sizes(name: str, tensor: torch.Tensor, names: str | tuple[str, ...] | None) -> list[tuple[str, int]]:
    if isinstance(names, str):
        return [(names, tensor.numel())]
    if names is None:
        if tensor.dim() == 0:
            raise UnservedError(f"'{name}' is a tensor without dimensions")
        return [(f"{name}_{number}", size) for number, size in enumerate(tensor.shape)]
    if tensor.dim() != len(names):
        raise UnservedError(f"'{name}' has {tensor.dim()} dimensions, not {len(names)} ({', '.join(names)})")
    return list(zip(names, tensor.shape, strict=True))


def _require_readable(
    name: str, tensor: torch.Tensor, first: torch.Tensor, any_dense: bool, accepts_layout: AcceptsLayout
) -> None:
    if not tensor.is_floating_point():
        raise UnservedError(f"'{name}' is {tensor.dtype}: all tensors of a kernel have one floating-point dtype")
    if tensor.dtype != first.dtype or tensor.device != first.device:
        raise UnservedError(f"'{name}' is {tensor.dtype} on {tensor.device}, not {first.dtype} on {first.device}")
    if tensor.numel() == 0:
        raise UnservedError(f"'{name}' is empty")
    if tensor.is_contiguous() or (any_dense and _fills_its_memory(tensor)) or accepts_layout(name, tensor):
        return
    raise UnservedError(f"'{name}' is not contiguous: its strides are {tensor.stride()}")


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory: only then does a pointwise result have these strides."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def _require_alike(module: nn.Module, first: torch.Tensor, accepts_layout: AcceptsLayout) -> None:
    """Parameters and buffers are where the inputs are, those of floating point have their type."""
    for tensors in held(module):
        for tensor in tensors:
            other_type = tensor.dtype != first.dtype and tensor.is_floating_point()
            if other_type or tensor.device != first.device:
                what = f"a parameter or buffer is {tensor.dtype} on {tensor.device}"
                raise UnservedError(f"{what}, the inputs are {first.dtype} on {first.device}")
            if not tensor.is_contiguous():
                named = (*module.named_parameters(), *module.named_buffers())
                name = next((name for name, one in named if one is tensor), "a parameter")
                if not accepts_layout(name, tensor):
                    raise UnservedError(f"'{name}' is not contiguous: its strides are {tensor.stride()}")
