"""A module in float64, for as long as it takes to ask it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tunebench.tuner.gate.values import mapped, tensors_in


@contextlib.contextmanager
def in_float64(module: nn.Module, inputs: Sequence[Any]) -> Iterator[None]:
    """Everything that a module holds is in float64, and whatever it asks of floating-point types; then it is as before.

    It is the module itself and no copy, since a forward may keep functions of its own parts.

    Args:
        inputs: of the module at its own precision, in whose type it draws random numbers.
    """
    tensors = [*module.parameters(), *module.buffers()]
    registered = {id(tensor) for tensor in tensors}
    floating = (tensor.dtype for tensor in tensors_in(inputs) if tensor.is_floating_point())
    default = torch.get_default_dtype()
    with as_it_was(module):
        for tensor in tensors:
            tensor.data = widened(tensor.data)
        for part in module.modules():
            own = {name: value for name, value in part.__dict__.items() if name not in _TABLES}
            part.__dict__.update({name: _widened_beside(value, registered) for name, value in own.items()})
        torch.set_default_dtype(torch.float64)
        try:
            with _InFloat64(default, next(floating, default)):
                yield
        finally:
            torch.set_default_dtype(default)


@contextlib.contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Restore a module's tensors and attributes at the end; its buffers are copies meanwhile."""
    tensors = [*module.parameters(), *module.buffers()]
    memory = [tensor.data for tensor in tensors]
    parts = [(part, [dict(held) for held in _held_by(part)]) for part in module.modules()]
    try:
        for buffer in module.buffers():
            buffer.data = buffer.data.clone()
        yield
    finally:
        for part, were in parts:
            for held, was in zip(_held_by(part), were, strict=True):
                held.clear()
                held.update(was)
        for tensor, data in zip(tensors, memory, strict=True):
            tensor.data = data


_TABLES = ("_parameters", "_buffers", "_modules")


def _held_by(part: nn.Module) -> list[dict[str, Any]]:
    """The tables of a module's parameters and buffers, and its plain attributes."""
    return [part.__dict__["_parameters"], part.__dict__["_buffers"], part.__dict__]


def _widened_beside(value: Any, registered: Collection[int]) -> Any:
    """A plain attribute in float64, such as a list in which a module holds its parameters once more: these are in
    float64 already, and a copy of one would have no gradient."""
    return mapped(value, lambda tensor: tensor if id(tensor) in registered else widened(tensor))


def widened(value: Any) -> Any:
    """The same with floating-point and complex tensors in float64; every tensor is a copy."""
    return mapped(value, lambda tensor: tensor.detach().to(_wide_type(tensor.dtype), copy=True))


class _InFloat64(TorchFunctionMode):
    """Turns what a forward asks of other floating-point types into float64, as `.float()` or `dtype=torch.half`.

    Random numbers are drawn in the type that they are drawn in without it, since float64 draws others.
    """

    _CONVERSIONS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
    _LIKE = (torch.rand_like, torch.randn_like)
    _FACTORIES = (torch.rand, torch.randn)
    _IN_PLACE = (torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.exponential_)

    def __init__(self, default: torch.dtype, drawn_in: torch.dtype) -> None:
        super().__init__()
        self._default = default
        self._drawn_in = drawn_in

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation in float64."""
        named = dict(kwargs or {})
        if func in self._CONVERSIONS:
            return args[0].double(**named)
        if func in self._LIKE or func in self._FACTORIES:
            kind = named.get("dtype") or (self._drawn_in if func in self._LIKE else self._default)
            return func(*args, **{**named, "dtype": kind}).double()
        if func in self._IN_PLACE and args[0].dtype is torch.float64:
            drawn = func(torch.empty_like(args[0], dtype=self._drawn_in), *args[1:], **named)
            return args[0].copy_(drawn)
        if func is torch.bernoulli:
            return func(args[0].to(self._drawn_in), *args[1:], **named).double()
        return func(*(_wide_type(value) for value in args), **{key: _wide_type(value) for key, value in named.items()})


def _wide_type(value: Any) -> Any:
    if not isinstance(value, torch.dtype):
        return value
    if value.is_complex:
        return torch.complex128
    return torch.float64 if value.is_floating_point else value
