"""Whether what g++ builds builds for a GPU too: NVRTC has no headers of the C library, and rules of its own."""

from __future__ import annotations

from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.nvrtc import NvrtcApart
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import CompileError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem

ARCHITECTURE = "sm_90"
"""What is built for where nobody says for which GPU."""


def refusal_by_nvrtc(
    kernel: Kernel, configuration: Configuration, problem: Problem, architecture: str = ARCHITECTURE
) -> CompileError | None:
    """Why NVRTC refuses a configuration, with its log; None where it builds it.

    Raises:
        CompilerMissingError: NVRTC is not on this machine.
    """
    compiler = NvrtcApart()
    compiler.version()
    try:
        BuildCache().build(compiler, kernel.variant(configuration, problem, architecture))
    except CompileError as error:
        return error
    return None
