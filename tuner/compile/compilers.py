"""The compilers by name, and which ones serve a device."""

from __future__ import annotations

from collections.abc import Sequence

from tunebench.tuner.build import Build, CompilerName, LoadedModule
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.compile.inline import InlineCompiler
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.compile.triton.compiler import TritonCompiler
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.errors import CompilerMissingError, UserError
from tunebench.tuner.sources import Language, language_of
from tunebench.tuner.variant import Variant

COMPILERS: dict[CompilerName, type[Compiler]] = {
    CompilerName.NVRTC: NvrtcCompiler,
    CompilerName.CPU: CpuCompiler,
    CompilerName.INLINE: InlineCompiler,
    CompilerName.TRITON: TritonCompiler,
}


class BothCompilers(Compiler):
    """Both compilers, for kernels in CUDA C++ and in Triton: each variant goes to the compiler of its language."""

    def __init__(self, cuda: Compiler, triton: Compiler) -> None:
        self.name = cuda.name
        self._of = {Language.CUDA: cuda, Language.TRITON: triton}

    def of(self, variant: Variant) -> Compiler:
        """Return the compiler of the variant's language."""
        return self._of[language_of(variant.source)]

    def version(self) -> str:
        """Return both versions."""
        return ", ".join(one.version() for one in self._of.values())

    def flags(self, variant: Variant) -> tuple[str, ...]:
        """Return the flags of the compiler of the variant's language."""
        return self.of(variant).flags(variant)

    def compile(self, variant: Variant) -> Build:
        """Compile by the compiler of the variant's language."""
        return self.of(variant).compile(variant)

    def apart(self) -> Compiler:
        """Return both compilers apart."""
        return BothCompilers(*(one.apart() for one in self._of.values()))

    def load(self, build: Build, device_index: int | None = None) -> LoadedModule:
        """Load by the compiler that made the build."""
        language = Language.TRITON if build.compiler is CompilerName.TRITON else Language.CUDA
        return self._of[language].load(build, device_index)


def default_compiler(device: Device, languages: Sequence[Language] = (Language.CUDA,)) -> Compiler:
    """Return the compiler that is used for a device unless one is named; whether it is installed is not checked."""
    cuda = COMPILERS[CompilerName.CPU if device.kind is DeviceKind.CPU else CompilerName.NVRTC]()
    return _with_triton(cuda, languages)


def compiler_for(
    device: Device, name: CompilerName | None = None, languages: Sequence[Language] = (Language.CUDA,)
) -> Compiler:
    """Return the compiler of that name, or the device's default: `nvrtc` on CUDA, `cpu` on the CPU.

    What is Triton is compiled by Triton, beside it or alone.

    Raises:
        UserError: that compiler's binaries do not run on that device, or it does not compile these languages.
        CompilerMissingError: one is not on this machine.
    """
    if Language.CUDA not in languages and name not in (None, CompilerName.TRITON):
        raise UserError(f"compiler '{name}' does not compile Triton, which this kernel is: leave it out")
    if Language.CUDA in languages and name is CompilerName.TRITON:
        raise UserError("compiler 'triton' does not compile CUDA C++: leave it out, and Triton sources are its own")
    on_cpu = device.kind is DeviceKind.CPU
    if name is not None and name is not CompilerName.TRITON and on_cpu != (name is CompilerName.CPU):
        legal = "cpu" if on_cpu else "nvrtc, inline"
        raise UserError(f"compiler '{name}' does not make binaries for {device.kind}: use {legal}")
    compiler = default_compiler(device, languages) if name is None else _with_triton(COMPILERS[name](), languages)
    try:
        compiler.version()
    except CompilerMissingError as error:
        if isinstance(compiler, BothCompilers):
            raise CompilerMissingError(f"{error}; or tune the other source alone: --tunable source=cuda") from error
        raise
    return compiler


def _with_triton(cuda: Compiler, languages: Sequence[Language]) -> Compiler:
    if Language.TRITON not in languages:
        return cuda
    return BothCompilers(cuda, TritonCompiler()) if Language.CUDA in languages else TritonCompiler()
