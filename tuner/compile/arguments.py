"""Arguments of a launch: from Python's values to what lies in memory, by the entry point's own signature."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, NoReturn

import torch

from tunebench.tuner.build import Dim3, Threads, Within
from tunebench.tuner.device import MOST_BLOCKS, MOST_BLOCKS_ACROSS
from tunebench.tuner.errors import ArgumentError
from tunebench.tuner.signature import LEGAL_TYPES, Kind, Parameter, Signature
from tunebench.tuner.tensor_map import TensorMap, encoded_map

_DTYPES = {
    Kind.HALF: torch.float16,
    Kind.BFLOAT16: torch.bfloat16,
    Kind.FLOAT: torch.float32,
    Kind.DOUBLE: torch.float64,
}
"""The tensors that a pointer to floating-point numbers takes."""
_WHOLE_NUMBERS = (Kind.INT16, Kind.UINT16, Kind.INT32, Kind.UINT32, Kind.INT64, Kind.UINT64)
"""Integers that a pointer is for, where one to bytes is for anything."""

# CUDA's limits from sm_90 on; shared memory in bytes.
_MOST_BLOCKS = (MOST_BLOCKS, MOST_BLOCKS_ACROSS, MOST_BLOCKS_ACROSS)
_MOST_THREADS = (1024, 1024, 64)
MOST_THREADS_PER_BLOCK = 1024
_MOST_SHARED = 227 * 1024


class Form(NamedTuple):
    """The positions of a launch's arguments of each kind, in their order.

    Attributes:
        places: those that are `Within` a tensor.
        maps: those that are a `TensorMap`.
        devices: what `get_device` says of tensors, and of those of places and maps, that are where the launch is.
    """

    tensors: tuple[int, ...]
    places: tuple[int, ...]
    maps: tuple[int, ...]
    numbers: tuple[int, ...]
    nulls: tuple[int, ...]
    devices: list[int | None]


class Arguments:
    """The arguments of one entry point, for launches on one device.

    A tensor passes the address of its first element, None a null pointer; numbers pass their value in the parameter's
    own type. Python types and devices are looked at in every launch, dtypes of tensors in the first with such types.

    Attributes:
        entry_point: its name.
        rounds: whether there is a number that `struct` cannot pack by itself.
        codes: of the parameters, for the module `struct`.
        offsets: of the parameters in memory, in bytes.
        sizes: of the parameters, in bytes.
        size: of the memory of all, in bytes.
    """

    def __init__(self, signature: Signature, device: torch.device) -> None:
        self.entry_point = signature.entry_point
        self._parameters = signature.parameters
        self._device = device
        # Tensors on the CPU share what `get_device` says with those that are nowhere.
        self._index = device.index if device.type == "cuda" else None
        # What cannot be launched has no layout; the first launch says why.
        kinds = [parameter.kind or Kind.UINT8 for parameter in signature.parameters]
        self.rounds = Kind.BFLOAT16 in kinds
        self.codes = tuple(kind.code for kind in kinds)
        self.offsets = offsets_of(self.codes)
        self.sizes = tuple(kind.bytes for kind in kinds)
        self._memory = struct.Struct("@" + "".join(self.codes))
        self.size = self._memory.size
        self._forms: dict[tuple[type, ...], Form] = {}

    def form(self, arguments: Sequence[Any]) -> Form:
        """Return the kinds of the arguments' values, each checked to be one that its parameter takes.

        Raises:
            LaunchError: their number or the type of one is not the entry point's.
        """
        types = tuple(map(type, arguments))
        if types not in self._forms:
            self._forms[types] = self._accept(arguments)
        return self._forms[types]

    def check_devices(self, arguments: Sequence[Any]) -> None:
        """Check that all tensors are on the launch's device.

        Raises:
            LaunchError: one is not.
        """
        for parameter, argument in zip(self._parameters, arguments, strict=True):
            tensor = argument.tensor if isinstance(argument, Within | TensorMap) else argument
            if isinstance(tensor, torch.Tensor) and tensor.device != self._device:
                self._refuse(parameter, f"takes a tensor on {self._device}, not on {tensor.device}")

    def numbers(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the numbers among the arguments as `struct` packs them, rounded to infinity where their type ends.

        Raises:
            LaunchError: an integer is not one of its type's.
        """
        return [self._number(self._parameters[at], arguments[at]) for at in self.form(arguments).numbers]

    def _number(self, parameter: Parameter, value: Any) -> Any:
        kind = parameter.kind
        assert kind is not None
        if kind is Kind.BFLOAT16:
            return _bfloat16(value)
        if kind.is_floating:
            return _rounded(value, kind)
        try:
            struct.pack(kind.code, value)
        except struct.error:
            bits = 8 * kind.bytes
            least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if kind.code.islower() else (0, 2**bits)
            self._refuse(parameter, f"takes {least} to {most - 1}, not {value}")
        return value

    def pack(self, arguments: Sequence[Any]) -> bytes:
        """Pack all arguments, each at its offset.

        Raises:
            ArgumentError: they are not what the entry point takes.
        """
        form = self.form(arguments)
        self.check_devices(arguments)
        values: list[Any] = [0] * len(arguments)
        for at in form.tensors:
            values[at] = arguments[at].data_ptr()
        for at in form.places:
            values[at] = arguments[at].address
        for at in form.maps:
            values[at] = map_bytes(arguments[at])
        for at, number in zip(form.numbers, self.numbers(arguments), strict=True):
            values[at] = number
        return self._memory.pack(*values)

    def _accept(self, arguments: Sequence[Any]) -> Form:
        for parameter in self._parameters:
            if parameter.kind is None:
                raise ArgumentError(
                    f"launch of '{self.entry_point}': parameter {parameter} cannot be given an argument: its type is "
                    f"not {LEGAL_TYPES}"
                )
        if len(arguments) != len(self._parameters):
            names = ", ".join(parameter.name for parameter in self._parameters) or "none"
            raise ArgumentError(
                f"launch of '{self.entry_point}': it takes {len(self._parameters)} arguments ({names}), "
                f"not {len(arguments)}"
            )
        for parameter, argument in zip(self._parameters, arguments, strict=True):
            self._check(parameter, argument)
        self.check_devices(arguments)
        tensors = tuple(at for at, value in enumerate(arguments) if isinstance(value, torch.Tensor))
        places = tuple(at for at, value in enumerate(arguments) if isinstance(value, Within))
        maps = tuple(at for at, value in enumerate(arguments) if isinstance(value, TensorMap))
        nulls = tuple(at for at, value in enumerate(arguments) if value is None)
        numbers = tuple(at for at in range(len(arguments)) if at not in (*tensors, *places, *maps, *nulls))
        return Form(tensors, places, maps, numbers, nulls, [self._index] * len((*tensors, *places, *maps)))

    def _check(self, parameter: Parameter, argument: Any) -> None:
        kind = parameter.kind
        assert kind is not None
        given = f"{argument!r} ({type(argument).__name__})" if isinstance(argument, Real) else type(argument).__name__
        if kind is Kind.POINTER:
            if isinstance(argument, torch.Tensor):
                self._check_tensor(parameter, argument)
            elif argument is not None and not isinstance(argument, Within):
                self._refuse(parameter, f"takes a tensor or None, not {given}")
        elif kind is Kind.TENSOR_MAP:
            if not isinstance(argument, TensorMap):
                self._refuse(parameter, f"takes a TensorMap, not {given}")
        elif kind.is_floating:
            if not isinstance(argument, Real):
                self._refuse(parameter, f"takes a float or an int, not {given}")
        elif not isinstance(argument, Integral):
            self._refuse(parameter, f"takes an int or a bool, not {given}")

    def _check_tensor(self, parameter: Parameter, tensor: torch.Tensor) -> None:
        pointee, dtype = parameter.pointee, tensor.dtype
        if pointee is not None and pointee.is_floating and dtype is not _DTYPES[pointee]:
            self._refuse(parameter, f"takes a {str(_DTYPES[pointee])[6:]} tensor, not {str(dtype)[6:]}")
        if pointee in _WHOLE_NUMBERS and (dtype.is_floating_point or dtype.itemsize != pointee.bytes):
            bits = 8 * pointee.bytes
            self._refuse(parameter, f"takes a tensor of {bits}-bit integers, not {str(dtype)[6:]}")

    def _refuse(self, parameter: Parameter, why: str) -> NoReturn:
        raise ArgumentError(f"launch of '{self.entry_point}': parameter {parameter} {why}")


def offsets_of(codes: Sequence[str], head: str = "") -> tuple[int, ...]:
    """Return the offsets of values with these codes of the module `struct` in memory, behind what `head` describes."""
    return tuple(struct.calcsize(f"@{head}{''.join(codes[:at])}0{code[-1]}") for at, code in enumerate(codes))


def map_bytes(map_: TensorMap) -> bytes:
    """Return what a parameter `TensorMap` is given of a tensor.

    Raises:
        ArgumentError: the driver makes no map of it.
    """
    try:
        return encoded_map(map_.tensor.data_ptr(), map_.layout)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def dim3(extent: Threads) -> Dim3:
    """Return extents in x, y and z, from one number or up to three.

    Raises:
        ArgumentError: it is neither.
    """
    given = (extent,) if isinstance(extent, int) else tuple(extent) if isinstance(extent, Sequence) else ()
    if not (1 <= len(given) <= 3 and all(isinstance(value, Integral) for value in given)):
        raise ArgumentError(f"blocks and threads are an int or up to three of them (x, y, z), not {extent!r}")
    x, y, z = (*map(int, given), 1, 1)[:3]
    return x, y, z


def geometry_refusal(grid: Dim3, block: Dim3, shared: int) -> str | None:
    """Return why CUDA would refuse a launch of that geometry (`shared` in bytes), or None."""
    for what, extents, most in (("grid", grid, _MOST_BLOCKS), ("block", block, _MOST_THREADS)):
        if len(extents) != 3 or not all(1 <= extent <= limit for extent, limit in zip(extents, most, strict=True)):
            return f"extents of a {what} are from (1, 1, 1) to {most}"
    if math.prod(block) > MOST_THREADS_PER_BLOCK:
        return f"{math.prod(block)} threads a block; at most {MOST_THREADS_PER_BLOCK}"
    if not 0 <= shared <= _MOST_SHARED:
        return f"{shared} bytes of dynamic shared memory a block; at most {_MOST_SHARED}"
    return None


def no_entry_point(name: str, known: Iterable[str]) -> ArgumentError:
    """Return the error of a launch of an entry point that a source has not."""
    return ArgumentError(
        f"no entry point '{name}' (known: {', '.join(known) or 'none'}); an entry point is written out in the source "
        f'as extern "C" __global__ void {name}(parameters), not by a macro'
    )


def _rounded(value: Any, kind: Kind) -> float:
    try:
        number = float(value)
        struct.pack(kind.code, number)
    except OverflowError:  # beyond the largest number of the type
        return float("inf") if value > 0 else float("-inf")
    return number


def _bfloat16(value: Any) -> int:
    """Return the bits of the nearest bfloat16, to even between two; one of an integer's, as the codes have it."""
    bits = struct.unpack("=I", bytes(ctypes.c_float(_rounded(value, Kind.DOUBLE))))[0]
    if bits & 0x7FFFFFFF > 0x7F800000:  # not a number: it stays one
        return int(bits >> 16) | 0x40
    return int(bits + 0x7FFF + (bits >> 16 & 1)) >> 16
