"""Quick builds for tests that ask what a kernel computes."""

from collections.abc import Iterator

import pytest

from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.variant import Variant


@pytest.fixture(scope="module", autouse=True)
def without_optimisation() -> Iterator[None]:
    """g++ takes a third of the time without optimisation, and a source means the same.

    What g++ makes of a source as users build it is asked where commands build it, in `tests/studies` and `tests/tuner`,
    and here of everything in bfloat16, which an optimising g++ once got wrong.
    """
    flags = CpuCompiler.flags

    def quick(self: CpuCompiler, variant: Variant) -> tuple[str, ...]:
        given = flags(self, variant)
        return given if "bfloat_t" in variant.prologue else tuple("-O0" if flag == "-O3" else flag for flag in given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuCompiler, "flags", quick)
        yield
