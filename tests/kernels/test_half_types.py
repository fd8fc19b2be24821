"""float16 and bfloat16 by all five kernels: as near to float64 as the gate asks, in every mode, vectors or not."""

from __future__ import annotations

import random

import pytest
from tests.kernels.five_models import KERNELS
from tests.kernels.half_types import HALF_TYPES, WHOLE, judge_half_type

from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.space import ValidSpace

CASES = [(name, dtype, mode) for name in KERNELS for dtype in HALF_TYPES for mode in load_model(name).kernel.modes]


@pytest.mark.slow
@pytest.mark.parametrize("mode", load_model("gemm_scale_bn").kernel.modes)
def test_a_thread_divides_once_for_each_of_its_features(mode: Mode) -> None:
    def divides_once(space: ValidSpace) -> set[int]:
        return {space.nearest({**space[space.default], "normalisation": "in_registers", "vector_width": 8})}

    assert judge_half_type("gemm_scale_bn", "bfloat16", mode, WHOLE["gemm_scale_bn"], find_device("cpu"), divides_once)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "mode"), CASES)
def test_every_mode(name: str, dtype: str, mode: Mode) -> None:
    def drawn(space: ValidSpace) -> set[int]:
        return {random.Random(name).randrange(len(space))}

    def widest(space: ValidSpace) -> set[int]:
        return {space.nearest({**space[next(iter(drawn(space)))], "vector_width": 8, "output_vector_bytes": 16})}

    odd = {key: size + 1 for key, size in WHOLE[name].items()}
    for sizes, pick in ((WHOLE[name], widest), (odd, drawn)):
        assert judge_half_type(name, dtype, mode, sizes, find_device("cpu"), pick) > 0
