"""conv_min_add_mul on CUDA: layouts, precisions and torch's flags. Skips without a GPU."""

import copy
import random
from dataclasses import replace

import pytest
import torch

from tunebench.kernels.conv_min_add_mul.model import ModelNew
from tunebench.kernels.conv_min_add_mul.reference import Model
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device

pytestmark = pytest.mark.gpu

SPACE = ModelNew.kernel.space
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


def pair(channels: int, outputs: int) -> tuple[Model, ModelNew]:
    torch.manual_seed(3)
    arguments = (channels, outputs, 3, 0.5, (outputs, 1, 1), 2.0)
    reference, tuned = Model(*arguments).cuda(), ModelNew(*arguments).cuda()
    tuned.load_state_dict(reference.state_dict())
    return reference, tuned


def pin(model: ModelNew, device: Device, x: torch.Tensor, pick: int, convolution: str, **wanted: object) -> None:
    """Pin a configuration of that convolution."""
    problem = model.problem(x)
    assert problem is not None
    allowed = {"convolution": [convolution], **{name: [value] for name, value in wanted.items()}}
    # Convolutions that round sums to halves are for other cards; their passes are tested here all the same.
    kept = tuple(one for one in SPACE.constraints if one.name != "sums_are_rounded_only_where_they_must")
    space = replace(SPACE, constraints=kept).restrict(allowed).enumerate(problem, device)
    chosen = random.Random(pick).choice(space)
    model.pin(build_plan(model.kernel, chosen, problem, device, compiler_for(device)))


def error(output: torch.Tensor, reference: Model, x: torch.Tensor) -> float:
    wanted = copy.deepcopy(reference).double()(x.double())
    return float(torch.linalg.vector_norm(output.double() - wanted) / torch.linalg.vector_norm(wanted))


@pytest.mark.parametrize("given", LAYOUTS)
@pytest.mark.parametrize("convolution", ["strict", "tf32", "fp16", "implicit_gemm"])
@pytest.mark.parametrize("pick", range(6))
def test_every_precision_and_layout(cuda: Device, pick: int, convolution: str, given: str) -> None:
    allowed = 1e-6 if convolution == "strict" else 1e-3
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("register_rows", range(4))
def test_the_copy_engine_writes_whatever_the_alignment(
    cuda: Device, register_rows: int, turns: bool, dtype: torch.dtype
) -> None:
    allowed = {torch.float32: 1e-3, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    # Rows and planes of the output begin at every multiple of an element beyond 16 bytes; the last has two tiles.
    for (batch, channels, height, width), outputs in (
        ((3, 16, 12, 10), 16),
        ((2, 5, 11, 13), 7),
        ((1, 21, 7, 34), 37),
        ((2, 24, 9, 5), 130),
        ((2, 16, 6, 263), 130),
    ):
        reference, tuned = (model.to(dtype) for model in pair(channels, outputs))
        x = torch.randn(batch, channels, height, width, device="cuda", dtype=dtype)
        with torch.no_grad():
            chosen = {"writes": "bulk", "register_rows": register_rows, "turns": turns}
            pin(tuned, cuda, x, register_rows, "implicit_gemm", **chosen)
            output = tuned(x)
            assert error(output, reference, x) < allowed
            assert torch.equal(output, tuned(x))


@pytest.mark.parametrize("convolution", ["im2col", "implicit_gemm"])
def test_operands_are_rounded_as_the_reference_rounds_them(cuda: Device, convolution: str) -> None:
    reference, tuned = pair(64, 128)
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.rand(128, 64, 128, 128, device="cuda")
        # Many values lie between two of TF32's: the last bit that is kept, then a one, then zeros.
        x[::2] = (x[::2] * 1024).floor() / 1024 + 0.5 / 1024 + 0.5
        with torch.no_grad():
            pin(tuned, cuda, x, seed, convolution)
            assert float((tuned(x) - reference(x)).abs().max()) < 5e-5


@pytest.mark.parametrize("convolution", ["im2col", "im2col_parts", "fp16", "implicit_gemm", "implicit_parts"])
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


@pytest.mark.parametrize(("writes", "given"), [("threads", "nchw"), ("threads", "channels_last"), ("bulk", "nchw")])
def test_halves_of_both_operands_are_as_exact_as_single_precision(cuda: Device, writes: str, given: str) -> None:
    # The channels are one group of eight, two groups, and parts of them; the filters are more than a tile, and fewer.
    for channels, outputs, (height, width) in (
        (8, 64, (18, 18)),
        (16, 130, (7, 263)),
        (3, 24, (11, 13)),
        (13, 7, (5, 131)),
    ):
        reference, tuned = pair(channels, outputs)
        x = torch.randn(3, channels, height, width, device="cuda").contiguous(memory_format=LAYOUTS[given])
        for pick in range(4):
            # Registers hold all rows of the filters where the channels are few.
            chosen = {"register_rows": pick if channels <= 8 else pick % 3} if writes == "bulk" else {}
            with torch.no_grad():
                pin(tuned, cuda, x, pick, "implicit_parts", writes=writes, **chosen)
                output = tuned(x)
                assert error(output, reference, x) < 2e-5
                assert torch.equal(output, tuned(x))


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


@pytest.mark.parametrize("convolution", ["tf32", "im2col", "fp16", "implicit_gemm"])
def test_a_channels_last_model_gives_channels_last(cuda: Device, convolution: str) -> None:
    for pick in range(2):
        reference, tuned = (model.to(memory_format=torch.channels_last) for model in pair(16, 16))
        x = torch.randn(2, 16, 12, 12, device="cuda")
        with torch.no_grad():
            pin(tuned, cuda, x, pick, convolution)
            output = tuned(x)
            assert output.is_contiguous(memory_format=torch.channels_last)
            assert output.stride() == reference(x).stride()
            assert error(output, reference, x) < 1e-3
