"""A kernel: a KernelBench problem plus a search space, and the model that runs it under a configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from tunebench.tuner.compile.base import Argument, Dim3, LoadedModule
from tunebench.tuner.device import Device
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.problem import Problem, Work
from tunebench.tuner.reference import Reference, load_reference
from tunebench.tuner.space import Configuration, SearchSpace
from tunebench.tuner.variant import KernelSource, Variant, prologue


@dataclass(frozen=True)
class Kernel:
    """All that is declared about a kernel.

    Attributes:
        folder: where its `reference.py`, `model.py` and `.cu` are.
        space: its tunables, constraints and default.
        work: the least any implementation of a problem must do.
        modes: the modules' modes worth tuning: `eval`, `train`; one where the mode changes nothing.
        compiled_axes: axes of the problem that are constants of the binary.
        atomics: sums in an order that changes from run to run, so that runs may differ in their last bits.
        rewrites_algebra: an algebraic rewrite of the reference, which may make an infinity of its NaN and the reverse.
    """

    name: str
    folder: Path
    source: KernelSource
    space: SearchSpace
    work: Callable[[Problem], Work]
    modes: tuple[str, ...] = ("eval",)
    compiled_axes: tuple[str, ...] = ()
    atomics: bool = False
    rewrites_algebra: bool = False

    @classmethod
    def declare(
        cls,
        model_file: str,
        *,
        entry_points: tuple[str, ...],
        space: SearchSpace,
        work: Callable[[Problem], Work],
        include: Path | None = None,
        modes: tuple[str, ...] = ("eval",),
        compiled_axes: tuple[str, ...] = (),
        atomics: bool = False,
        rewrites_algebra: bool = False,
    ) -> Kernel:
        """Declare the kernel of the folder that `model_file` (the model's `__file__`) is in.

        Raises:
            KernelFolderError: the folder has no `.cu` of the folder's name.
        """
        folder = Path(model_file).parent
        path = folder / f"{folder.name}.cu"
        if not path.exists():
            raise KernelFolderError(f"{folder}: no {path.name}; a kernel's source has its folder's name")
        source = KernelSource.read(path, entry_points, include)
        return cls(folder.name, folder, source, space, work, modes, compiled_axes, atomics, rewrites_algebra)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of every file that a result depends on: results of an edited kernel are never served."""
        texts = {name: (self.folder / name).read_text() for name in ("model.py", "reference.py")}
        return hashlib.sha256(json.dumps([self.source.digest, texts]).encode()).hexdigest()

    def reference(self, sizes: Mapping[str, int | float] | None = None) -> Reference:
        """The kernel's reference, with some of its sizes changed."""
        return load_reference(self.folder / "reference.py", sizes)

    def variant(self, configuration: Configuration, problem: Problem, architecture: str) -> Variant:
        """The variant that a configuration needs for a problem on an architecture."""
        axes = {name: problem.axes[name] for name in self.compiled_axes}
        return Variant(self.source, prologue(self.space, configuration, problem.dtype, axes), architecture)


@dataclass(frozen=True)
class Plan:
    """How to run one problem on one device: a configuration with its loaded binary."""

    configuration: Configuration
    problem: Problem
    device: Device
    module: LoadedModule

    def launch(self, entry_point: str, grid: Dim3, block: Dim3, *arguments: Argument, shared: int = 0) -> None:
        """Launch an entry point; see `LoadedModule.launch`."""
        self.module.launch(entry_point, grid, block, arguments, shared)

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Blocks of that entry point that the whole device holds at once."""
        return self.device.multiprocessors * self.module.resident_blocks(entry_point, threads, shared)


class TunableModel(Protocol):
    """What the tuner needs of a `ModelNew`: an `nn.Module` that can be told which plan to run."""

    def problem(self, *inputs: Any) -> Problem | None:
        """The problem that a call with these inputs is; None where only the reference's operations can serve it."""

    def pin(self, plan: Plan | None) -> None:
        """Run this plan in every forward from now on; None goes back to choosing."""

    def __call__(self, *inputs: Any) -> torch.Tensor:
        """The model's forward."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """As in `nn.Module`."""

    def named_buffers(self) -> Any:
        """As in `nn.Module`."""

    def named_parameters(self) -> Any:
        """As in `nn.Module`."""

    def train(self, mode: bool = True) -> Any:
        """As in `nn.Module`."""


ModelFactory = Callable[..., TunableModel]
Inputs = Sequence[Any]
