"""conv_min_add_mul on CUDA: layouts, precisions and torch's flags. Skips without a GPU."""

import copy
import itertools
import random

import pytest
import torch

from tunebench.kernels.conv_min_add_mul.model import SPACE, ModelNew
from tunebench.kernels.conv_min_add_mul.reference import Model
from tunebench.tuner.compile import compiler_for
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.kernel import Plan

pytestmark = pytest.mark.gpu

LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


@pytest.fixture(scope="module")
def cuda() -> Device:
    return find_device("cuda")


def pair(channels: int, outputs: int) -> tuple[Model, ModelNew]:
    torch.manual_seed(3)
    arguments = (channels, outputs, 3, 0.5, (outputs, 1, 1), 2.0)
    reference, tuned = Model(*arguments).cuda(), ModelNew(*arguments).cuda()
    tuned.load_state_dict(reference.state_dict())
    return reference, tuned


def pin(model: ModelNew, device: Device, x: torch.Tensor, pick: int, convolution: str) -> None:
    problem = model.problem(x)
    assert problem is not None
    space = SPACE.restrict({"convolution": [convolution]}).enumerate(problem, device)
    chosen = random.Random(pick).choice(space)
    compiler = compiler_for(device)
    build = BuildCache().build(compiler, model.kernel.variant(chosen, problem, device.architecture))
    model.pin(Plan(chosen, problem, device, compiler.load(build, device.index)))


def error(output: torch.Tensor, reference: Model, x: torch.Tensor) -> float:
    wanted = copy.deepcopy(reference).double()(x.double())
    return float(torch.linalg.vector_norm(output.double() - wanted) / torch.linalg.vector_norm(wanted))


@pytest.mark.parametrize("given", LAYOUTS)
@pytest.mark.parametrize(
    ("convolution", "allowed"), [("strict", 1e-6), ("tf32", 1e-3), ("fp16", 1e-3), ("implicit_gemm", 1e-3)]
)
@pytest.mark.parametrize("pick", range(6))
def test_every_precision_and_layout(cuda: Device, pick: int, convolution: str, allowed: float, given: str) -> None:
    for (batch, channels, height, width), outputs in (
        ((3, 64, 18, 18), 128),
        ((2, 5, 11, 13), 7),
        ((1, 33, 7, 34), 37),
        ((2, 64, 5, 131), 130),
    ):
        reference, tuned = pair(channels, outputs)
        x = torch.randn(batch, channels, height, width, device="cuda").contiguous(memory_format=LAYOUTS[given])
        with torch.no_grad():
            pin(tuned, cuda, x, pick, convolution)
            output = tuned(x)
            assert error(output, reference, x) < allowed
            assert output.stride() == reference(x).stride()
            assert torch.equal(output, tuned(x))


@pytest.mark.parametrize("convolution", ["fp16", "implicit_gemm"])
def test_half_precision_is_right_outside_its_range(cuda: Device, convolution: str) -> None:
    for pick in range(4):
        reference, tuned = pair(16, 32)
        x = torch.randn(5, 16, 19, 21, device="cuda")
        for sample, size in ((1, 1e6), (2, 1e-9), (3, 1e30), (4, 0.0)):
            x[sample] *= size
        with torch.no_grad():
            pin(tuned, cuda, x, pick, convolution)
            output = tuned(x)
            for sample in range(5):
                part = slice(sample, sample + 1)
                assert error(output[part], reference, x[part]) < (1e-6 if sample in {1, 2, 3} else 1e-3)


def test_torch_flags_decide_the_precision() -> None:
    reference, tuned = pair(64, 128)
    x = torch.randn(4, 64, 34, 34, device="cuda")
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32
    try:
        with torch.no_grad():
            for allowed in (True, False, True):
                cudnn.allow_tf32 = allowed
                problem = tuned.problem(x)
                assert problem is not None
                assert problem.options["precision"] == ("tf32" if allowed else "strict")
                assert allowed or error(tuned(x), reference, x) < 1e-6
    finally:
        cudnn.allow_tf32 = before


def test_a_channels_last_model_gives_channels_last(cuda: Device) -> None:
    for pick, convolution in itertools.product(range(2), ("tf32", "fp16", "implicit_gemm")):
        reference, tuned = (model.to(memory_format=torch.channels_last) for model in pair(8, 16))
        x = torch.randn(2, 8, 12, 12, device="cuda")
        with torch.no_grad():
            pin(tuned, cuda, x, pick, convolution)
            output = tuned(x)
            assert output.is_contiguous(memory_format=torch.channels_last)
            assert output.stride() == reference(x).stride()
            assert error(output, reference, x) < 1e-3
