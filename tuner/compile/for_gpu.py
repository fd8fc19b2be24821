"""Whether what runs on a CPU builds for a GPU too: NVRTC has no headers of the C library, and rules of its own."""

from __future__ import annotations

from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import BothCompilers
from tunebench.tuner.compile.nvrtc import NvrtcApart
from tunebench.tuner.compile.triton.compiler import TritonCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import CompileError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem

ARCHITECTURE = "sm_90"
"""The GPU architecture that is built for where none is named."""


def refusal_for_gpu(
    kernel: Kernel, configuration: Configuration, problem: Problem, architecture: str = ARCHITECTURE
) -> CompileError | None:
    """Return why NVRTC, or Triton, refuses a configuration, with its log; None where it is built.

    Raises:
        CompilerMissingError: what would build it is not on this machine.
    """
    variant = kernel.variant(configuration, problem, architecture)
    compiler = BothCompilers(NvrtcApart(), TritonCompiler()).of(variant)
    compiler.version()
    try:
        BuildCache().build(compiler, variant)
    except CompileError as error:
        return error
    return None
