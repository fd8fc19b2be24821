"""Every kernel is built for every generation of GPUs that the documentation names, none of which need be here."""

from __future__ import annotations

import pytest
from sampling import slow_but

from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.kernels.runtime.shipped import files_of, read_file
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize("architecture", slow_but(["sm_75", "sm_90", "sm_120"], ARCHITECTURES))
@pytest.mark.parametrize("name", kernel_names())
def test_the_default_configuration_is_built(name: str, architecture: str) -> None:
    kernel = load_model(name).kernel
    problem = read_file(files_of(kernel)[0]).results[0].problem
    built = NvrtcCompiler().compile(kernel.variant(Configuration(kernel.space.default), problem, architecture))
    assert built.code.startswith(b"\x7fELF") and built.figures
