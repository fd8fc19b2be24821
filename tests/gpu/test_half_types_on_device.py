"""float16 and bfloat16 by all five kernels on a device, at small sizes and at KernelBench's, judged as by the gate."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest
import torch
from tests.kernels.five_models import KERNELS
from tests.kernels.half_types import HALF_TYPES, WHOLE, judge_half_type

from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.device import Device
from tunebench.tuner.errors import LaunchError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.space import ValidSpace

pytestmark = pytest.mark.gpu

CASES = [(name, dtype, mode) for name in KERNELS for dtype in HALF_TYPES for mode in load_model(name).kernel.modes]
IMAGES = {"batch_size": 3, "in_channels": 16, "out_channels": 136, "height": 40, "width": 150}
_NEEDED_BYTES = 64 << 30


@pytest.fixture(autouse=True)
def freed() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def sample(space: ValidSpace) -> set[int]:
    """The default, the one with the widest vectors, and three more."""
    widest = space.nearest({**space[space.default], "vector_width": 8, "output_vector_bytes": 16})
    return {space.default, widest, *random.Random(3).sample(range(len(space)), min(3, len(space)))}


@pytest.mark.parametrize(("name", "dtype", "mode"), CASES)
def test_small_sizes(name: str, dtype: str, mode: Mode, cuda: Device) -> None:
    for sizes in (WHOLE[name], {key: size + 1 for key, size in WHOLE[name].items()}):
        with contextlib.suppress(LaunchError):  # cuDNN's graph need not have a plan for such images
            assert judge_half_type(name, dtype, mode, sizes, cuda, sample) > 0


@pytest.mark.parametrize(("name", "dtype", "mode"), CASES)
def test_the_sizes_of_kernelbench(name: str, dtype: str, mode: Mode, cuda: Device) -> None:
    if torch.cuda.mem_get_info()[0] < _NEEDED_BYTES:
        pytest.skip("needs 64 GiB of free memory")

    def widest(space: ValidSpace) -> list[int]:
        return [space.nearest({**space[space.default], "vector_width": 8, "output_vector_bytes": 16})]

    assert judge_half_type(name, dtype, mode, {}, cuda, widest) == 1


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("convolution", ["strict", "implicit_gemm", "graph"])
@pytest.mark.parametrize("change", [{}, {"in_channels": 24, "width": 151}, {"in_channels": 5, "out_channels": 7}])
def test_every_way_to_convolve(convolution: str, dtype: str, change: dict[str, int | float], cuda: Device) -> None:
    def ways(space: ValidSpace) -> list[int]:
        found = [number for number in range(len(space)) if space[number]["convolution"] == convolution]
        if not found:
            pytest.skip(f"this device has no {convolution} for such images")
        return random.Random(5).sample(found, min(6, len(found)))

    try:
        assert judge_half_type("conv_min_add_mul", dtype, Mode.EVAL, {**IMAGES, **change}, cuda, ways) > 0
    except LaunchError as error:
        pytest.skip(str(error))
