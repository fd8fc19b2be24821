"""The build of a Triton source on one CUDA device: of each entry point the binary that its arguments allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tunebench.tuner.build import Argument, Build, DriverLaunch, Extent, KernelFigures, LoadedModule, Threads, Within
from tunebench.tuner.compile.arguments import Arguments
from tunebench.tuner.compile.nvrtc import CudaModule
from tunebench.tuner.compile.triton.binaries import Binary, binaries_in
from tunebench.tuner.compile.triton.launch import no_function, require_triton_launch
from tunebench.tuner.signature import Kind, Parameter, Signature
from tunebench.tuner.triton_source import DIVISOR

_MASK = DIVISOR - 1


@dataclass(frozen=True)
class Launchable:
    """A binary on a device, with how it is launched.

    Attributes:
        nulls: behind the arguments.
    """

    binary: Binary
    build: Build
    module: CudaModule
    nulls: tuple[None, ...]


class TritonModule(LoadedModule):
    """A Triton source's cubins on one CUDA device."""

    def __init__(self, build: Build, device_index: int | None) -> None:
        index = torch.cuda.current_device() if device_index is None else device_index
        self._signatures = build.signatures
        self._counts = {name: len(one.parameters) for name, one in build.signatures.items()}
        self._aligned: dict[str, Launchable] = {}
        self._any: dict[str, Launchable] = {}
        self._integers: dict[str, tuple[int, ...]] = {}
        for binary in binaries_in(build.code):
            one = _launchable(build, binary, index)
            (self._aligned if binary.aligned else self._any)[binary.entry_point] = one
            if binary.aligned:
                names = [parameter.name for parameter in build.signatures[binary.entry_point].parameters]
                self._integers[binary.entry_point] = tuple(names.index(name) for name in binary.divisible)

    def launch(
        self, entry_point: str, blocks: Extent, threads: Threads, arguments: Sequence[Argument], shared: int = 0
    ) -> None:
        """Launch on torch's current stream of the device.

        Raises:
            LaunchError: the arguments are not what the function takes, or the driver refused the launch.
        """
        require_triton_launch(entry_point, self._aligned, threads, shared)
        if len(arguments) != self._counts[entry_point]:
            Arguments(self._signatures[entry_point], torch.device("cuda")).form(arguments)  # says which there are
        one = self._fitting(entry_point, arguments)
        binary = one.binary
        one.module.launch(binary.name, blocks, binary.threads, (*arguments, *one.nulls), binary.shared)

    def as_launched(self, launch: DriverLaunch) -> DriverLaunch:
        """Return the launch of the binary for these arguments, and of what is behind them."""
        require_triton_launch(launch.entry_point, self._aligned, launch.threads, launch.shared)
        one = self._fitting(launch.entry_point, launch.arguments)
        arguments = (*launch.arguments, *one.nulls)
        return DriverLaunch(one.build, one.binary.name, one.binary.threads, arguments, one.binary.shared)

    def _fitting(self, entry_point: str, arguments: Sequence[Argument]) -> Launchable:
        """Return the binary for these arguments."""
        bits = 0
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                bits |= argument.data_ptr()
            elif isinstance(argument, Within):
                bits |= argument.address
        if bits & _MASK:
            return self._any[entry_point]
        for at in self._integers[entry_point]:
            value: Any = arguments[at] if at < len(arguments) else 0
            if not isinstance(value, int) or value & _MASK:
                return self._any[entry_point]
        return self._aligned[entry_point]

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:  # noqa: ARG002
        """Return how many programs one multiprocessor holds at once, by the driver's occupancy calculation."""
        if entry_point not in self._aligned:
            raise no_function(entry_point, self._aligned)
        one = self._aligned[entry_point]
        return one.module.resident_blocks(one.binary.name, one.binary.threads, one.binary.shared)


def _launchable(build: Build, binary: Binary, index: int) -> Launchable:
    signature = build.signatures[binary.entry_point]
    hidden = tuple(Parameter(f"scratch {at}", "void*", Kind.POINTER) for at in range(binary.hidden))
    whole = Signature(binary.name, (*signature.parameters, *hidden))
    cubin = replace(build, code=binary.code, figures={binary.name: KernelFigures()}, signatures={binary.name: whole})
    return Launchable(binary, cubin, CudaModule(cubin, index), (None,) * binary.hidden)
