"""conv_min_add_mul on the CPU: every layout and precision, the range of half precision, and the reference elsewhere."""

import copy
import itertools

import pytest
import torch
from five_models import pin
from hopper import HOPPER
from torch import nn

from tunebench.kernels.conv_min_add_mul.model import ModelNew
from tunebench.kernels.conv_min_add_mul.reference import Model
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.problem import Problem

CPU = find_device("cpu")
SPACE = ModelNew.kernel.space
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}

INPUT = {"input_block_size": 128, "input_vector_bytes": 16, "input_tile": 32, "input_items": 2}
OUTPUT = {"output_block_size": 128, "output_vector_bytes": 16, "output_tile": 32, "output_items": 2}


def configuration(convolution: str, layout: str, **others: object) -> Configuration:
    """Half precision is not for the CPU, but its passes run there: a pinned plan is not held to the space."""
    return Configuration(
        {"convolution": convolution, "convolution_layout": layout, **INPUT, **OUTPUT, **others}  # type: ignore[dict-item]
    )


def pair(channels: int = 8, outputs: int = 12, kernel: int = 3, constant: float = 0.1) -> tuple[Model, ModelNew]:
    torch.manual_seed(3)
    arguments = (channels, outputs, kernel, constant, (outputs, 1, 1), 1.7)
    reference, tuned = Model(*arguments), ModelNew(*arguments)
    tuned.load_state_dict(reference.state_dict())
    return reference, tuned


def error(output: torch.Tensor, reference: Model, x: torch.Tensor) -> float:
    """The largest relative norm error of a sample, against float64."""
    wanted = copy.deepcopy(reference).double()(x.double()).flatten(1)
    difference = torch.linalg.vector_norm(output.double().flatten(1) - wanted, dim=1)
    return float((difference / torch.linalg.vector_norm(wanted, dim=1)).max())


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("convolution", "allowed"), [("strict", 1e-6), ("fp16", 1e-3)])
def test_every_layout_and_size(convolution: str, allowed: float, layout: str) -> None:
    chosen = configuration(convolution, layout)
    shapes = (((3, 8, 10, 10), 12), ((2, 5, 11, 13), 7), ((1, 33, 7, 34), 37), ((2, 4, 3, 3), 1))
    for (shape, outputs), given in itertools.product(shapes, LAYOUTS):
        reference, tuned = pair(shape[1], outputs)
        x = torch.randn(shape).contiguous(memory_format=LAYOUTS[given])
        with torch.no_grad():
            pin(tuned, chosen, x)
            output = tuned(x)
            assert error(output, reference, x) < allowed
            assert output.stride() == reference(x).stride()
            assert torch.equal(output, tuned(x))


@pytest.mark.parametrize("bytes_", [4, 8])
def test_narrow_accesses_and_large_tiles(bytes_: int) -> None:
    reference, tuned = pair()
    x = torch.randn(2, 8, 12, 11)
    chosen = configuration(
        "fp16",
        "channels_last",
        input_vector_bytes=bytes_,
        output_vector_bytes=bytes_,
        input_tile=64,
        output_tile=64,
        output_block_size=256,
    )
    with torch.no_grad():
        pin(tuned, chosen, x)
        assert error(tuned(x), reference, x) < 1e-3


@pytest.mark.slow
def test_float64_in_place_and_off_alignment() -> None:
    for dtype, allowed in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        reference, tuned = (model.to(dtype) for model in pair())
        x = torch.randn(2 * 8 * 10 * 12 + 1, dtype=dtype)[1:].view(2, 8, 10, 12)
        for chosen in (configuration("strict", "nchw", in_place=True), configuration("strict", "channels_last")):
            with torch.no_grad():
                pin(tuned, chosen, x)
                assert error(tuned(x), reference, x) < allowed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_precision_is_right_outside_its_range(layout: str) -> None:
    """Samples and channels that half precision cannot hold come out as in single precision, the others as before."""
    reference, tuned = pair()
    with torch.no_grad():
        reference.conv.weight[2] *= 1e25
        reference.conv.weight[3] *= 1e-35
        tuned.load_state_dict(reference.state_dict())
        x = torch.randn(6, 8, 9, 9)
        for sample, size in ((1, 1e6), (2, 1e-9), (3, 1e30), (4, 0.0)):
            x[sample] *= size
        pin(tuned, configuration("fp16", layout), x)
        output, wanted = tuned(x), copy.deepcopy(reference).double()(x.double())
    scale = torch.linalg.vector_norm(wanted, dim=(2, 3))
    finite = scale < 1e38
    relative = torch.linalg.vector_norm(output.double() - wanted, dim=(2, 3)) / scale
    assert finite.sum() > 60
    assert bool((relative[finite] < 1e-3).all())
    assert bool((relative[1:4][finite[1:4]] < 1e-6).all())


def test_what_is_not_finite_stays_so() -> None:
    reference, tuned = pair()
    x = torch.randn(4, 8, 9, 9)
    x[1, 2, 3, 4], x[2, 0, 5, 5], x[3, 1, 0, 0] = float("nan"), float("inf"), -float("inf")
    with torch.no_grad():
        wanted = reference(x)
        for chosen in (configuration("fp16", "channels_last"), configuration("strict", "channels_last")):
            pin(tuned, chosen, x)
            output = tuned(x)
            assert torch.equal(torch.isnan(output), torch.isnan(wanted))
            assert torch.equal(torch.isinf(output), torch.isinf(wanted))
            tuned.constant_value = float("nan")
            assert bool(torch.isnan(tuned(x)).all())
            tuned.constant_value = reference.constant_value


def test_less_precision_only_where_the_reference_has_it() -> None:
    axes = {
        "batch": 2,
        "in_channels": 8,
        "height": 9,
        "width": 9,
        "out_channels": 4,
        "kernel_height": 3,
        "kernel_width": 3,
    }

    def found(precision: str, device: Device, **sizes: int) -> set[object]:
        options = {"input": "nchw", "output": "nchw", "precision": precision}
        problem = Problem({**axes, **sizes}, "float32", options)
        return {member["convolution"] for member in SPACE.enumerate(problem, device)}

    ours = {"im2col", "im2col_parts"}
    assert found("tf32", HOPPER) == {"strict", "tf32", "implicit_gemm", "implicit_parts"} | ours
    assert found("strict", HOPPER) == {"strict", "im2col_parts", "implicit_parts"}
    assert found("tf32", HOPPER, in_channels=4096) == {"strict", "tf32"} | ours
    assert found("tf32", CPU) == {"strict"}


@pytest.mark.slow
@pytest.mark.parametrize("given", LAYOUTS)
@pytest.mark.parametrize("weight", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "kernel"), [((2, 8, 9, 7), 3), ((2, 1, 9, 7), 3), ((2, 8, 5, 5), 1), ((1, 1, 1, 1), 1), ((2, 8, 3, 3), 3)]
)
def test_the_output_has_the_reference_layout(shape: tuple[int, ...], kernel: int, given: str, weight: str) -> None:
    """A channels-last input or weight gives a channels-last output; sizes of 1 leave open which one was meant."""
    reference, tuned = (model.to(memory_format=LAYOUTS[weight]) for model in pair(shape[1], 6, kernel))
    x = torch.randn(shape).contiguous(memory_format=LAYOUTS[given])
    with torch.no_grad():
        wanted, output = reference(x), tuned(x)
    torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-6)
    assert output.stride() == wanted.stride()
    assert tuned.problem(x) is not None


def changed(change: str, model: Model | ModelNew) -> None:
    """What a user may do to a model between two calls."""
    with torch.no_grad():
        if change == "scalar bias":
            model.bias = nn.Parameter(torch.ones(1))
        elif change == "constant":
            model.constant_value = -1
        elif change == "other convolution":
            model.conv = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False)
            model.conv.weight.fill_(0.1)


@pytest.mark.parametrize("change", ["scalar bias", "constant", "other convolution"])
def test_a_change_between_two_calls_changes_the_next_output(change: str) -> None:
    reference, tuned = pair()
    x = torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        before = tuned(x)
        changed(change, reference)
        changed(change, tuned)
        after = tuned(x)
        torch.testing.assert_close(after, reference(x), rtol=1e-5, atol=1e-6)
    assert after.shape != before.shape or not torch.allclose(after, before)


@pytest.mark.parametrize("convolution", ["tf32", "fp16"])
def test_nvrtc_compiles_for_hopper_without_spills(nvrtc: NvrtcCompiler, convolution: str) -> None:
    _, tuned = pair()
    problem = tuned.problem(torch.randn(2, 8, 9, 9))
    assert problem is not None
    build = nvrtc.compile(tuned.kernel.variant(configuration(convolution, "channels_last"), problem, "sm_90"))
    assert set(build.figures) == set(tuned.kernel.source.entry_points)
    assert not any(figures.spill_stores for figures in build.figures.values())
