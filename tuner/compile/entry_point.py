"""An entry point of a cubin, ready to launch: configuration and arguments packed in one go, one call of the driver."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from tunebench.tuner.build import Argument, Extent, Threads, Within
from tunebench.tuner.compile.arguments import Arguments, dim3, geometry_refusal, map_bytes, offsets_of
from tunebench.tuner.errors import LaunchError
from tunebench.tuner.tensor_map import TensorMap

DriverCall: TypeAlias = Callable[[int, int, int, None], int]
"""`cuLaunchKernelEx`: the addresses of a CUlaunchConfig, of a function and of the arguments' addresses; the status."""

_CONFIGURATION = "@7IPPI4x"
"""A CUlaunchConfig: grid, block, bytes of dynamic shared memory, stream, attributes and their number."""
_SHARED_WITHOUT_ASKING = 48 * 1024
"""Dynamic shared memory, in bytes, that a block gets without the function's limit being raised."""

_EARLY = ctypes.create_string_buffer(struct.pack("@I4xi60x", 6, 1), 72)
"""A CUlaunchAttribute: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION is allowed."""
_EARLY_ADDRESS = ctypes.addressof(_EARLY)

_address_of = torch.Tensor.data_ptr
_device_of = torch.Tensor.get_device
Memory: TypeAlias = tuple[bytearray, int, int, Any]
"""The memory of a launch, the addresses of its configuration and of its arguments' addresses, and these arguments."""


class EntryPoint:
    """A launcher of one function.

    Attributes:
        shared_limit: dynamic shared memory, bytes a block, that the function may have.
    """

    def __init__(self, function: int, arguments: Arguments, call: DriverCall) -> None:
        self.shared_limit = _SHARED_WITHOUT_ASKING
        self._function = function
        self._arguments = arguments
        self._call = call
        self._packers: dict[tuple[type, ...], _Packer] = {}

    def launch(
        self,
        blocks: Extent,
        threads: Threads,
        arguments: Sequence[Argument],
        shared: int,
        stream: int,
        *,
        early: bool = False,
    ) -> int:
        """Launch, and give the driver's status.

        Args:
            stream: its handle.
            early: whether it may begin before the launch in front of it has ended.

        Raises:
            LaunchError: the arguments are not what the entry point takes, or there is no such grid or block.
        """
        # Every microsecond here is one that a forward of a small problem waits: one function, and no loop in Python.
        packer = self._packers.get(tuple(map(type, arguments))) or self._new_packer(arguments)
        tensors, within = packer.tensors(arguments), packer.within(arguments) if packer.has_within else ()
        if [*map(_device_of, tensors), *[tensor.get_device() for tensor, _ in within]] != packer.devices:
            self._arguments.check_devices(arguments)
        try:
            memory = packer.free.pop()
        except IndexError:
            memory = packer.new_memory()
        attributes, count = (_EARLY_ADDRESS, 1) if early else (0, 0)
        values = [*map(_address_of, tensors), *[_value_of(one) for one in within]]
        try:
            x, y, z = (blocks, 1, 1) if type(blocks) is int else _three(blocks)
            u, v, w = (threads, 1, 1) if type(threads) is int else _three(threads)
            numbers = packer.numbers(arguments)
            packer.pack_into(memory[0], 0, x, y, z, u, v, w, shared, stream, attributes, count, *values, *numbers)
        except (struct.error, OverflowError):
            grid, block = dim3(blocks), dim3(threads)
            if refusal := geometry_refusal(grid, block, shared):
                name = self._arguments.entry_point
                raise LaunchError(f"launch of '{name}' with grid {grid}, block {block}: {refusal}") from None
            exact = self._arguments.numbers(arguments)
            packer.pack_into(memory[0], 0, *grid, *block, shared, stream, attributes, count, *values, *exact)
        status = self._call(memory[1], self._function, memory[2], None)
        packer.free.append(memory)
        return status

    def _new_packer(self, arguments: Sequence[Argument]) -> _Packer:
        packer = self._packers[tuple(map(type, arguments))] = _Packer(self._arguments, arguments)
        return packer


class _Packer:
    """A packer of launches whose arguments have the same Python types.

    The driver reads a launch's configuration and arguments from memory that is made once and written anew for each
    launch. A launch takes it from a list and puts it back, so that threads that launch at the same time have one each.

    Attributes:
        tensors, within, numbers: pick these of a launch's arguments; `within` are places and maps.
        devices: what `get_device` says of tensors, and of those of `within`, that are where the launch is.
        pack_into: writes configuration, addresses, maps and numbers; null pointers are there from the start.
        free: memory that no launch is using.
    """

    __slots__ = ("_offsets", "_size", "devices", "free", "has_within", "numbers", "pack_into", "tensors", "within")

    def __init__(self, arguments: Arguments, given: Sequence[Argument]) -> None:
        form = arguments.form(given)
        self.tensors, self.within = _picker(form.tensors), _picker((*form.places, *form.maps))
        self.has_within = bool(form.places or form.maps)
        self.numbers = arguments.numbers if arguments.rounds else _picker(form.numbers)
        self.devices = form.devices
        self.free: list[Memory] = []
        order = (*form.tensors, *form.places, *form.maps, *form.numbers, *form.nulls)
        codes = [arguments.codes[at] for at in order]
        written = "".join(codes[: len(order) - len(form.nulls)])
        self.pack_into = struct.Struct(_CONFIGURATION + written).pack_into
        self._size = struct.calcsize(_CONFIGURATION + "".join(codes))
        offsets = offsets_of(codes, _CONFIGURATION.removeprefix("@"))
        self._offsets = [offset for _, offset in sorted(zip(order, offsets, strict=True))]

    def new_memory(self) -> Memory:
        """Make the memory for one launch at a time."""
        memory = bytearray(self._size)
        # The view keeps the memory where it is.
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        address = ctypes.addressof(view)
        addresses = (ctypes.c_void_p * max(1, len(self._offsets)))(*[address + offset for offset in self._offsets])
        return memory, address, ctypes.addressof(addresses), (view, addresses)


def _picker(positions: tuple[int, ...]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks what stands at positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda values: [values[at] for at in positions]


def _value_of(one: Within | TensorMap) -> int | bytes:
    """Return the address of a place in a tensor, or what the copy engine knows of one."""
    return map_bytes(one) if isinstance(one, TensorMap) else one.address


def _three(extent: Threads) -> Sequence[Any]:
    """Return extents in x, y and z; what is no extent `struct` refuses."""
    return (*extent, 1) if type(extent) is tuple and len(extent) == 2 else dim3(extent)
