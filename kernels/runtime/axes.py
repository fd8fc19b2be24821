"""The problem that a call is, by the names that a kernel gives to the dimensions of its tensors."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tunebench.kernels.runtime.ordinary import held
from tunebench.tuner.problem import OUTPUT, Axes

AcceptsLayout = Callable[[str, torch.Tensor], bool]
"""Whether a kernel reads that tensor, which is not contiguous, as it lies in memory."""

INDEX_TYPES = (torch.int64, torch.bool)
"""The types of positions, classes and masks in torch: one of each, so that a pointer of a source has one meaning."""


class UnservedError(Exception):
    """The reason why no kernel serves a call: one line."""


def sizes_of(
    module: nn.Module,
    inputs: Mapping[str, Any],
    axes: Axes | None,
    indices: Collection[str],
    accepts_layout: AcceptsLayout,
    in_float32: Collection[str] = (),
) -> tuple[dict[str, int], torch.Tensor]:
    """Return the sizes of a call's axes, and a floating-point tensor with the dtype and device of all others.

    Args:
        inputs: by their names in the reference's `forward`.
        axes: what the kernel calls dimensions; None for `x_0`, `x_1` and so on for an input `x`.
        indices: names of the tensors that are positions, classes or masks.
        in_float32: paths of parameters and buffers that are float32 whatever the inputs are.

    Raises:
        UnservedError: an input is none of a kernel that takes dense tensors of one floating-point dtype, indices beside
            them, and plain numbers.
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
    first = _floating(tensors.values(), module)
    sizes: dict[str, int] = {}
    for name, names in (axes if axes is not None else dict.fromkeys(tensors)).items():
        if name == OUTPUT:
            continue
        tensor = tensors[name] if name in tensors else _attribute(module, name)
        if tensor is None:
            raise UnservedError(f"the model has no '{name}'")
        _require_alike(name, tensor, first, is_index=name in indices)
        _require_readable(name, tensor, isinstance(names, str), accepts_layout)
        for axis, size in _named_sizes(name, tensor, names):
            if sizes.setdefault(axis, size) != size:
                raise UnservedError(f"'{axis}' is {size} in '{name}' and {sizes[axis]} before it")
    _require_held_alike(module, first, accepts_layout, [_attribute(module, path) for path in in_float32])
    return sizes, first


def _floating(inputs: Iterable[torch.Tensor], module: nn.Module) -> torch.Tensor:
    """Return the first floating-point tensor of a call: among the inputs, or else what the module holds."""
    for tensor in itertools.chain(inputs, *held(module)):
        if tensor.is_floating_point():
            return tensor
    raise UnservedError("no tensor is of a floating-point type")


def _attribute(module: nn.Module, path: str) -> torch.Tensor | None:
    try:
        found: torch.Tensor | None = operator.attrgetter(path)(module)
    except AttributeError:
        raise UnservedError(
            f"the kernel names '{path}', which is neither an input of forward nor a parameter or buffer"
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


def _require_alike(name: str, tensor: torch.Tensor, first: torch.Tensor, *, is_index: bool) -> None:
    if is_index and tensor.dtype not in INDEX_TYPES:
        raise UnservedError(f"'{name}' is {tensor.dtype}: the kernel's indices are torch.int64 or torch.bool")
    if not is_index and tensor.dtype in INDEX_TYPES:
        raise UnservedError(f"'{name}' is {tensor.dtype}, and none of the kernel's `indices`")
    if tensor.device != first.device or not (is_index or tensor.dtype == first.dtype):
        raise UnservedError(f"'{name}' is {tensor.dtype} on {tensor.device}, not {first.dtype} on {first.device}")


def _require_readable(name: str, tensor: torch.Tensor, any_dense: bool, accepts_layout: AcceptsLayout) -> None:
    if tensor.numel() == 0:
        raise UnservedError(f"'{name}' is empty")
    if tensor.is_contiguous() or (any_dense and _fills_its_memory(tensor)) or accepts_layout(name, tensor):
        return
    raise UnservedError(f"'{name}' is not contiguous: its strides are {tensor.stride()}")


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill one block of memory: only then does a pointwise result have these strides."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def _require_held_alike(
    module: nn.Module, first: torch.Tensor, accepts_layout: AcceptsLayout, in_float32: Sequence[torch.Tensor | None]
) -> None:
    """Require that parameters and buffers are where the inputs are, and the floating-point ones of their type."""
    for tensors in held(module):
        for tensor in tensors:
            legal = torch.float32 if any(tensor is one for one in in_float32) else first.dtype
            other_type = tensor.dtype != legal and tensor.is_floating_point()
            if other_type or tensor.device != first.device:
                what = f"a parameter or buffer is {tensor.dtype} on {tensor.device}"
                raise UnservedError(f"{what}, not {legal} on {first.device}")
            if not tensor.is_contiguous():
                named = (*module.named_parameters(), *module.named_buffers())
                name = next((name for name, one in named if one is tensor), "a parameter")
                if not accepts_layout(name, tensor):
                    raise UnservedError(f"'{name}' is not contiguous: its strides are {tensor.stride()}")
