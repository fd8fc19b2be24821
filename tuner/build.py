"""A build: a variant compiled, and the same loaded on a device."""

from __future__ import annotations

import abc
import enum
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tunebench.tuner.signature import Signature
from tunebench.tuner.tensor_map import TensorMap

if TYPE_CHECKING:
    import torch

Dim3: TypeAlias = tuple[int, int, int]
Extent: TypeAlias = int | Sequence[int]
"""The number of blocks or threads: in x, or in up to three dimensions."""
Threads: TypeAlias = Extent | None
"""The threads of a block; None where the source is Triton, whose programs have `num_warps`."""


class Within(NamedTuple):
    """A place in a tensor's memory: several buffers of a launch may lie in one allocation.

    Attributes:
        offset: bytes behind the tensor's first element.
    """

    tensor: torch.Tensor
    offset: int

    @property
    def address(self) -> int:
        """Where it is."""
        return self.tensor.data_ptr() + self.offset


Argument: TypeAlias = "torch.Tensor | Within | TensorMap | float | None"
"""An argument of a launch: a tensor passes its data pointer, `Within` one behind it, None a null pointer, a `TensorMap`
what the copy engine knows of a tensor; an int, a float or a bool passes its value in the type that the source
declares."""


class CompilerName(enum.StrEnum):
    """The compilers, by the name the command line and the database use."""

    NVRTC = "nvrtc"
    CPU = "cpu"
    INLINE = "inline"
    TRITON = "triton"


@dataclass(frozen=True)
class KernelFigures:
    """The figures of one entry point in the compiler's log; None where that compiler does not report them.

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
        code: the binary: a cubin, a shared library, or what `tuner/compile/triton` keeps of a Triton source.
        log: the compiler's full output.
        figures: by entry point.
        seconds: what compiling took; a build from the cache keeps the figure of when it was made.
        cached: it came from the build cache.
        signatures: of the entry points, by name; what is never loaded needs none.
    """

    variant_digest: str
    compiler: CompilerName
    compiler_version: str
    code: bytes = field(repr=False)
    log: str = field(repr=False)
    figures: Mapping[str, KernelFigures]
    seconds: float
    cached: bool = False
    signatures: Mapping[str, Signature] = field(default_factory=dict, repr=False)

    @property
    def code_sha256(self) -> str:
        """SHA-256 of the binary, in hexadecimal digits."""
        return hashlib.sha256(self.code).hexdigest()

    @property
    def code_bytes(self) -> int:
        """Size of the binary."""
        return len(self.code)

    @property
    def record(self) -> BuildRecord:
        """The facts about the build that are recorded."""
        return BuildRecord(**{one.name: getattr(self, one.name) for one in fields(BuildRecord)})


@dataclass(frozen=True)
class BuildRecord:
    """A build as results have it: its facts without its binary, see `Build`.

    Attributes:
        code_sha256, code_bytes: digest and size of the binary.
    """

    variant_digest: str
    compiler: CompilerName
    compiler_version: str
    code_sha256: str
    code_bytes: int
    log: str = field(repr=False)
    seconds: float
    figures: Mapping[str, KernelFigures]


class DriverLaunch(NamedTuple):
    """A launch as the driver is asked for it.

    Attributes:
        build: its code is the binary, and its signatures are the binary's own.
    """

    build: Build
    entry_point: str
    threads: Threads
    arguments: Sequence[Argument]
    shared: int


class LoadedModule(abc.ABC):
    """A build loaded on a device, its entry points ready to launch."""

    @abc.abstractmethod
    def launch(
        self, entry_point: str, blocks: Extent, threads: Threads, arguments: Sequence[Argument], shared: int = 0
    ) -> None:
        """Launch on torch's current stream of the module's device (a CPU launch has finished on return).

        Args:
            blocks: of the grid.
            threads: of a block; None where the source is Triton.
            arguments: in the order of the kernel's parameters.
            shared: dynamic shared memory, bytes a block.

        Raises:
            LaunchError: the launch was refused, or the arguments are not what the entry point takes.
        """

    def launch_early(
        self, entry_point: str, blocks: Extent, threads: Threads, arguments: Sequence[Argument], shared: int = 0
    ) -> None:
        """Launch as `launch` does, but let an entry point that itself waits for the launch in front of it begin before
        that one ends, where the module can have it so."""
        self.launch(entry_point, blocks, threads, arguments, shared)

    def as_launched(self, launch: DriverLaunch) -> DriverLaunch:
        """Return the launch that the driver runs in the place of a launch of this module."""
        return launch

    @abc.abstractmethod
    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Return how many blocks of that size one multiprocessor (on the CPU, one core) holds at once; at least 1."""
