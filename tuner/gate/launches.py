"""Launches as values: recorded from a call, so that another process can make them again under compute-sanitizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tunebench.tuner.build import Argument, Dim3, LoadedModule


@dataclass(frozen=True)
class Launch:
    """One launch, in plain values.

    Attributes:
        code: the binary.
        buffers: what each memory held that an argument points into.
        arguments: in order: a pointer as (buffer, offset in bytes), a scalar as (ctypes name, value).
        shared: dynamic shared memory, bytes a block.
    """

    code: bytes
    entry_point: str
    grid: Dim3
    block: Dim3
    shared: int
    buffers: tuple[bytes, ...]
    arguments: tuple[tuple[int, int] | tuple[str, int | float | None], ...]


class LaunchRecorder(LoadedModule):
    """Launches as the module it stands for does, and keeps what was launched.

    Attributes:
        launches: so far.
    """

    def __init__(self, module: LoadedModule, code: bytes) -> None:
        self.launches: list[Launch] = []
        self._module = module
        self._code = code

    def launch(self, entry_point: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], shared: int = 0) -> None:
        """Keep a launch with what its arguments hold, then do it."""
        places: dict[int, int] = {}
        buffers: list[bytes] = []
        values: list[tuple[int, int] | tuple[str, int | float | None]] = []
        for argument in arguments:
            if not isinstance(argument, torch.Tensor):
                values.append((type(argument).__name__, argument.value))
                continue
            storage = argument.untyped_storage()
            start = storage.data_ptr()
            if start not in places:
                places[start] = len(buffers)
                whole = torch.empty(0, dtype=torch.uint8, device=argument.device).set_(storage)
                buffers.append(whole.cpu().numpy().tobytes())
            values.append((places[start], argument.data_ptr() - start))
        self.launches.append(Launch(self._code, entry_point, grid, block, shared, tuple(buffers), tuple(values)))
        self._module.launch(entry_point, grid, block, arguments, shared)

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """As the module says."""
        return self._module.resident_blocks(entry_point, threads, shared)
