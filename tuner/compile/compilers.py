"""The compilers by name, and which one serves a device."""

from __future__ import annotations

from tunebench.tuner.build import CompilerName
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.compile.inline import InlineCompiler
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.errors import UserError

COMPILERS: dict[CompilerName, type[Compiler]] = {
    CompilerName.NVRTC: NvrtcCompiler,
    CompilerName.CPU: CpuCompiler,
    CompilerName.INLINE: InlineCompiler,
}


def default_compiler(device: Device) -> Compiler:
    """The compiler that a device's binaries come from unless another is named; whether it is here is not asked."""
    return COMPILERS[CompilerName.CPU if device.kind is DeviceKind.CPU else CompilerName.NVRTC]()


def compiler_for(device: Device, name: CompilerName | None = None) -> Compiler:
    """The compiler of that name, or the default one of the device: `nvrtc` on CUDA, `cpu` on the CPU.

    Raises:
        UserError: that compiler's binaries do not run on that device.
        CompilerMissingError: it is not on this machine.
    """
    on_cpu = device.kind is DeviceKind.CPU
    if name is None:
        name = default_compiler(device).name
    if on_cpu != (name is CompilerName.CPU):
        legal = "cpu" if on_cpu else "nvrtc, inline"
        raise UserError(f"compiler '{name}' does not make binaries for {device.kind}: use {legal}")
    compiler = COMPILERS[name]()
    compiler.version()
    return compiler
