"""A build: a variant compiled, and the same loaded on a device."""

from __future__ import annotations

import abc
import ctypes
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

Dim3: TypeAlias = tuple[int, int, int]
Scalar: TypeAlias = ctypes.c_float | ctypes.c_double | ctypes.c_longlong | ctypes.c_int | ctypes.c_void_p
Argument: TypeAlias = "torch.Tensor | Scalar"
"""A kernel argument: a tensor passes its data pointer, a ctypes scalar its value, whose type is the C++ parameter's;
`c_void_p(None)` is a null pointer."""


class CompilerName(enum.StrEnum):
    """The compilers, by the name the command line and the database use."""

    NVRTC = "nvrtc"
    CPU = "cpu"
    INLINE = "inline"


@dataclass(frozen=True)
class KernelFigures:
    """What the compiler's log says of one entry point; None where that compiler does not say.

    Attributes:
        registers: registers a thread.
        spill_stores, spill_loads, stack: bytes a thread.
        shared: static shared memory, bytes a block.
    """

    registers: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    stack: int | None = None
    shared: int | None = None


@dataclass(frozen=True)
class Build:
    """A compiled variant.

    Attributes:
        variant_digest: digest of the variant it was made from.
        compiler: which compiler made it.
        compiler_version: that compiler's own version text.
        code: the binary: a cubin, or a shared library.
        log: the compiler's full output.
        figures: by entry point.
        seconds: what compiling took; a build from the cache keeps the figure of when it was made.
        cached: it came from the build cache.
    """

    variant_digest: str
    compiler: CompilerName
    compiler_version: str
    code: bytes = field(repr=False)
    log: str = field(repr=False)
    figures: Mapping[str, KernelFigures]
    seconds: float
    cached: bool = False


class LoadedModule(abc.ABC):
    """A build loaded on a device, its entry points ready to launch."""

    @abc.abstractmethod
    def launch(self, entry_point: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], shared: int = 0) -> None:
        """Launch on torch's current stream of the module's device (a CPU launch has finished on return).

        Args:
            grid, block: extents in x, y, z.
            arguments: in the order of the kernel's parameters.
            shared: dynamic shared memory, bytes a block.

        Raises:
            LaunchError: the launch was refused.
        """

    @abc.abstractmethod
    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Blocks of that many threads that one multiprocessor (one core, on the CPU) holds at once; at least 1."""
