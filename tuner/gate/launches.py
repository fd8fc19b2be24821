"""Launches as values: recorded from a call, so that another process can make them again under compute-sanitizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tunebench.tuner.build import Argument, Build, Dim3, DriverLaunch, Extent, LoadedModule, Threads, Within
from tunebench.tuner.compile.arguments import Arguments, dim3
from tunebench.tuner.result import LaunchShape
from tunebench.tuner.tensor_map import MapLayout, TensorMap

MOST_BYTES = 1 << 24
"""Upper limit of the bytes that are recorded of memory whose numbers no address depends on."""


@dataclass(frozen=True)
class Launch:
    """One launch, in plain values.

    Attributes:
        code: the binary.
        buffers: what each memory held that an argument points into, and its size in bytes. Where that is larger, what
            it held is a beginning that stands for the rest as well, again and again.
        arguments: in order: a pointer as (buffer, offset in bytes), a tensor map with its layout behind that, a null
            pointer or a number as its bytes.
        shared: dynamic shared memory, bytes a block.
    """

    code: bytes
    entry_point: str
    grid: Dim3
    block: Dim3
    shared: int
    buffers: tuple[tuple[bytes, int], ...]
    arguments: tuple[tuple[int, int] | tuple[int, int, MapLayout] | bytes, ...]


class ShapeRecorder(LoadedModule):
    """Launches as the module it stands for does, and keeps the size of each different launch.

    Attributes:
        shapes: so far, in order.
    """

    def __init__(self, module: LoadedModule, build: Build) -> None:
        self.shapes: dict[LaunchShape, None] = {}
        self._module = module
        self._build = build

    def launch(
        self, entry_point: str, blocks: Extent, threads: Threads, arguments: Sequence[Argument], shared: int = 0
    ) -> None:
        """Keep the size of a launch, then do it."""
        asked = self._module.as_launched(DriverLaunch(self._build, entry_point, threads, arguments, shared))
        if asked.threads is not None:  # as Triton's interpreter has none
            sizes = math.prod(dim3(blocks)), math.prod(dim3(asked.threads))
            self.shapes[LaunchShape(asked.entry_point, *sizes, asked.shared)] = None
        self._module.launch(entry_point, blocks, threads, arguments, shared)

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """As the module says."""
        return self._module.resident_blocks(entry_point, threads, shared)


class LaunchRecorder(LoadedModule):
    """Launches as the module it stands for does, and keeps what was launched.

    Attributes:
        launches: so far.
    """

    def __init__(self, module: LoadedModule, build: Build, device: torch.device) -> None:
        self.launches: list[Launch] = []
        self._module = module
        self._build = build
        self._device = device

    def launch(
        self, entry_point: str, blocks: Extent, threads: Threads, arguments: Sequence[Argument], shared: int = 0
    ) -> None:
        """Keep a launch with what its arguments hold, then do it."""
        asked = self._module.as_launched(DriverLaunch(self._build, entry_point, threads, arguments, shared))
        packer = Arguments(asked.build.signatures[asked.entry_point], self._device)
        memory = packer.pack(asked.arguments)
        memories: dict[int, torch.UntypedStorage] = {}
        exact: set[int] = set()
        values: list[tuple[int, int] | tuple[int, int, MapLayout] | bytes] = []
        for argument, offset, size in zip(asked.arguments, packer.offsets, packer.sizes, strict=True):
            tensor, behind = argument if isinstance(argument, Within | TensorMap) else (argument, 0)
            if not isinstance(tensor, torch.Tensor):
                values.append(memory[offset : offset + size])
                continue
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            memories.setdefault(start, storage)
            if not _holds_numbers(argument):
                exact.add(start)
            place, first = list(memories).index(start), tensor.data_ptr() - start
            if isinstance(behind, MapLayout):
                values.append((place, first, behind))
            else:
                values.append((place, first + behind))
        buffers = [_held(storage, None if start in exact else MOST_BYTES) for start, storage in memories.items()]
        code, grid, block = asked.build.code, dim3(blocks), dim3(asked.threads)
        launch = Launch(code, asked.entry_point, grid, block, asked.shared, tuple(buffers), tuple(values))
        self.launches.append(launch)
        self._module.launch(entry_point, blocks, threads, arguments, shared)

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """As the module says."""
        return self._module.resident_blocks(entry_point, threads, shared)


def _holds_numbers(argument: Argument) -> bool:
    """Whether all that lies there is computed with by its type, so that none of it is an index, a count or a flag."""
    if isinstance(argument, torch.Tensor):
        return argument.is_floating_point() or argument.dtype is torch.int8
    return isinstance(argument, TensorMap)


def _held(storage: torch.UntypedStorage, most: int | None) -> tuple[bytes, int]:
    """Return the first bytes of a memory and the size of all."""
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return whole[:most].cpu().numpy().tobytes(), storage.nbytes()
