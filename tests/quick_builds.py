"""g++ without optimisation where TUNEBENCH_QUICK_BUILDS is set, as the fixture `quick_builds` does.

It takes a third of the time, and a source means the same. What g++ makes of a source as users build it is asked where
the fixture is not used, and of everything in bfloat16, which an optimising g++ once got wrong. Every process of a test
imports this, as it does `short_studies`.
"""

from __future__ import annotations

import os

from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.variant import Variant

VARIABLE = "TUNEBENCH_QUICK_BUILDS"
_flags = CpuCompiler.flags


def _quick(self: CpuCompiler, variant: Variant) -> tuple[str, ...]:
    given = _flags(self, variant)
    is_quick = VARIABLE in os.environ and "bfloat_t" not in variant.prologue
    return tuple("-O0" if flag == "-O3" else flag for flag in given) if is_quick else given


CpuCompiler.flags = _quick  # type: ignore[method-assign]
