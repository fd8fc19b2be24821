"""An entry point of a cubin, ready to launch: configuration and arguments packed in one go, one call of the driver."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tunebench.tuner.build import Argument, Extent
from tunebench.tuner.compile.arguments import Arguments, dim3, geometry_refusal
from tunebench.tuner.errors import LaunchError

DriverCall: TypeAlias = Callable[[int, int, int, None], int]
"""`cuLaunchKernelEx`: the addresses of a CUlaunchConfig, of a function and of the arguments' addresses; the status."""

_CONFIGURATION = "@7IPPI4x"
"""A CUlaunchConfig: grid, block, bytes of dynamic shared memory, stream, attributes and their number."""
_SHARED_WITHOUT_ASKING = 48 * 1024
"""Dynamic shared memory, in bytes, that a block gets without the function's limit being raised."""


class EntryPoint:
    """Launches one function.

    The driver reads a launch's configuration and arguments from memory that is made once and written anew for each
    launch. A launch takes it from a list and puts it back, so that threads that launch at the same time have one each.

    Attributes:
        shared_limit: dynamic shared memory, bytes a block, that the function may have.
    """

    def __init__(self, function: int, arguments: Arguments, call: DriverCall) -> None:
        self.shared_limit = _SHARED_WITHOUT_ASKING
        self._function = function
        self._arguments = arguments
        self._call = call
        self._layout = struct.Struct(_CONFIGURATION + arguments.codes)
        self._free: list[tuple[bytearray, int, int, Any]] = []

    def launch(self, blocks: Extent, threads: Extent, arguments: Sequence[Argument], shared: int, stream: int) -> int:
        """Launch, and give the driver's status.

        Args:
            stream: its handle.

        Raises:
            LaunchError: the arguments are not what the entry point takes, or there is no such grid or block.
        """
        try:
            grid_x, grid_y, grid_z = (blocks, 1, 1) if type(blocks) is int else _three(blocks)
            block_x, block_y, block_z = (threads, 1, 1) if type(threads) is int else _three(threads)
            values = self._arguments.values(arguments)
            try:
                memory = self._free.pop()
            except IndexError:
                memory = self._new_memory()
            self._layout.pack_into(
                memory[0], 0, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, 0, 0, *values
            )
        except (struct.error, OverflowError):
            grid, block = dim3(blocks), dim3(threads)
            if refusal := geometry_refusal(grid, block, shared):
                name = self._arguments.entry_point
                raise LaunchError(f"launch of '{name}' with grid {grid}, block {block}: {refusal}") from None
            values = self._arguments.exact_values(arguments)
            memory = self._new_memory()
            self._layout.pack_into(memory[0], 0, *grid, *block, shared, stream, 0, 0, *values)
        status = self._call(memory[1], self._function, memory[2], None)
        self._free.append(memory)
        return status

    def _new_memory(self) -> tuple[bytearray, int, int, Any]:
        """Memory for a launch, the addresses of its configuration and of its arguments' addresses, and these."""
        memory = bytearray(self._layout.size)
        # The view keeps the memory where it is.
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        address = ctypes.addressof(view)
        first = address + struct.calcsize(_CONFIGURATION)
        places = [first + offset for offset in self._arguments.offsets]
        addresses = (ctypes.c_void_p * max(1, len(places)))(*places)
        return memory, address, ctypes.addressof(addresses), (view, addresses)


def _three(extent: Extent) -> Sequence[Any]:
    """Extents in x, y and z; what is no extent `struct` refuses."""
    return (*extent, 1) if type(extent) is tuple and len(extent) == 2 else dim3(extent)
