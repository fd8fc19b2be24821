"""Blocks for convolutions on CUDA: geometries, layouts, types and every way to convolve. Skips without a GPU."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.shared.images import memory_format
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels" / "blocks"))
from convolved import EXAMPLES, GEOMETRIES, LAYOUTS, OTHERS, Model, Tuned, error, pair

pytestmark = pytest.mark.gpu

WAYS = ("strict", "tf32", "im2col", "im2col_parts", "fp16", "implicit_gemm", "implicit_parts", "direct")
PARTS = ("im2col_parts", "implicit_parts")
DENSE = (
    (3, 24, nn.Conv3d, {"kernel_size": 3}),
    (3, 17, nn.Conv3d, {"kernel_size": 4, "padding": (1, 2, 3), "stride": (2, 1, 3)}),
    (8, 24, nn.Conv3d, {"kernel_size": (2, 3, 4), "dilation": (2, 1, 3), "groups": 2}),
    (1, 33, nn.Conv1d, {"kernel_size": 9, "padding": 4}),
    (3, 64, nn.Conv2d, {"kernel_size": 11, "stride": 4, "padding": 2}),
    (4, 5, nn.Conv2d, {"kernel_size": (3, 5), "padding": "same"}),
)
"""Channels, of which groups have few, filters and a layer."""
ALLOWED = {"float32": 1e-3, "float16": 3e-3, "bfloat16": 2e-2}


def outputs(model: TunedModule, device: Device, inputs: list[object], pick: int, way: str) -> torch.Tensor | None:
    """The model under a configuration with that way to convolve; None where there is none."""
    problem = model.problem(*inputs)
    assert problem is not None, model.reason
    space = model.kernel.space.enumerate(problem, device)
    # Fast functions are right to a share of the largest value, not of each.
    exact = (number for number in range(len(space)) if not space[number].get("fast_math"))
    found = [number for number in exact if space[number]["convolution"] == way]
    if not found:
        return None
    chosen = space[random.Random(pick).choice(found)]
    plan = build_plan(model.kernel, chosen, problem, device, compiler_for(device))
    model.pin(plan)
    with torch.no_grad():
        output: torch.Tensor = model(*inputs)
        assert torch.equal(output.nan_to_num(), model(*inputs).nan_to_num()), "not the same twice"
    return output


def require_right(
    reference: torch.nn.Module,
    tuned: TunedModule,
    device: Device,
    x: torch.Tensor,
    ways: Sequence[str],
    sure: Sequence[str],
) -> None:
    """Require values and strides of the reference from each way to convolve; the sure ones have a configuration.

    The third image is out of the range of half precision.
    """
    for pick, way in enumerate(ways):
        output = outputs(tuned, device, [x], pick, way)
        if output is None:
            assert way not in sure
            continue
        with torch.no_grad():
            assert output.stride() == reference(x).stride()
        assert error(output[:2], reference, [x[:2]]) < (2e-5 if way in PARTS else 1e-3), way
        if way != "tf32":
            assert error(output[2:], reference, [x[2:]]) < 1e-3, way


@pytest.mark.parametrize("given", LAYOUTS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_every_geometry(cuda: Device, geometry: str, given: str) -> None:
    few = ("strict", "im2col", "implicit_gemm", "implicit_parts", "direct")
    for channels, filters, size, ways in ((64, 128, (34, 36), WAYS), (8, 16, (13, 15), few), (16, 136, (9, 140), few)):
        torch.manual_seed(3)
        reference = Model(channels, filters, GEOMETRIES[geometry]).cuda()
        tuned = Tuned(channels, filters, GEOMETRIES[geometry]).cuda()
        tuned.load_state_dict(reference.state_dict())
        x = torch.randn(3, channels, *size, device="cuda").contiguous(memory_format=LAYOUTS[given])
        x[2] *= 1e-7  # out of the range of half precision
        require_right(reference, tuned, cuda, x, ways, sure=("strict",))


@pytest.mark.parametrize("window", [(3, 3), (1, 31)])
def test_a_weight_that_is_nan_makes_nan_within_the_image_alone(cuda: Device, window: tuple[int, int]) -> None:
    torch.manual_seed(3)
    options = {"kernel_size": window, "padding": (window[0] // 2, window[1] // 2), "groups": 32}
    reference = Model(32, 32, options).cuda()
    with torch.no_grad():
        reference.conv.weight[5, 0, 0, 0] = torch.nan
    tuned = Tuned(32, 32, options).cuda()
    tuned.load_state_dict(reference.state_dict())
    x = torch.randn(2, 32, 20, 70, device="cuda")
    with torch.no_grad():
        wanted = reference(x)
    assert wanted.isnan().any() and not wanted[:, 5].isnan().all()
    for pick in range(3):
        output = outputs(tuned, cuda, [x], pick, "direct")
        assert output is not None and torch.equal(output.isnan(), wanted.isnan())


@pytest.mark.parametrize(("channels", "filters", "layer", "options"), DENSE)
def test_direct_threads_with_several_filters(
    cuda: Device, channels: int, filters: int, layer: type[nn.Module], options: dict[str, Any]
) -> None:
    torch.manual_seed(3)
    reference, tuned = (made(channels, filters, options, layer).cuda() for made in (Model, Tuned))
    tuned.load_state_dict(reference.state_dict())
    x = torch.randn(3, channels, *(9, 33, 38)[-(tuned.bias.dim() - 2) :], device="cuda")
    x[2] *= 1e-7
    for given in ("nchw", "channels_last")[: 1 + (x.dim() > 3)]:
        x = x.contiguous(memory_format=memory_format(given, x.dim()))
        for pick in range(3):
            output = outputs(tuned, cuda, [x], pick, "direct")
            assert output is not None
            with torch.no_grad():
                assert output.stride() == reference(x).stride()
            for some in (slice(2), slice(2, 3)):
                assert error(output[some], reference, [x[some]]) < 2e-6


@pytest.mark.parametrize("name", OTHERS)
def test_layers_with_other_sides_and_transposed_ones(cuda: Device, name: str) -> None:
    layer, options = OTHERS[name]
    torch.manual_seed(3)
    reference, tuned = (made(32, 64, options, layer).cuda() for made in (Model, Tuned))
    tuned.load_state_dict(reference.state_dict())
    x = torch.randn(3, 32, *(17, 12, 19)[-(tuned.bias.dim() - 2) :], device="cuda")
    x[2] *= 1e-7  # out of the range of half precision
    each = ("strict", "tf32", "im2col", "im2col_parts", "implicit_gemm", "implicit_parts", "direct")
    for given in ("nchw", "channels_last")[: 1 + (x.dim() > 3)]:
        x = x.contiguous(memory_format=memory_format(given, x.dim()))
        require_right(reference, tuned, cuda, x, each, sure=each[:-4])


# Filters of a tile, blocks that share them, blocks that share the sum; then channels, filters and a layer.
TILES = [
    ((64, 1, 1), (3, 33, nn.Conv2d, {"kernel_size": 7, "stride": 2, "padding": 3})),
    ((64, 2, 1), (4, 50, nn.Conv2d, {"kernel_size": (3, 4), "stride": (1, 2), "padding": (1, 0)})),
    ((64, 1, 2), (5, 64, nn.Conv3d, {"kernel_size": (2, 3, 5), "padding": (0, 1, 2)})),
    ((64, 2, 1), (20, 40, nn.Conv2d, {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)})),
    ((64, 1, 2), (32, 72, nn.Conv2d, {"kernel_size": 3, "groups": 2, "dilation": 2})),
    ((128, 2, 1), (64, 128, nn.Conv2d, {"kernel_size": 3, "padding": "same", "dilation": (2, 1)})),
    ((128, 1, 4), (48, 200, nn.Conv2d, {"kernel_size": 1, "stride": 8, "bias": False})),
    ((128, 1, 3), (128, 168, nn.Conv2d, {"kernel_size": (2, 3), "padding": 1})),
    ((64, 1, 8), (72, 104, nn.Conv2d, {"kernel_size": 3, "dilation": 2, "padding": 2})),
    ((160, 1, 1), (64, 320, nn.Conv3d, {"kernel_size": (2, 3, 4), "stride": (1, 2, 1), "padding": (0, 1, 2)})),
    ((192, 2, 1), (16, 192, nn.ConvTranspose2d, {"kernel_size": (3, 4), "stride": (2, 3), "output_padding": (1, 0)})),
    ((192, 1, 2), (96, 336, nn.ConvTranspose2d, {"kernel_size": 2, "stride": 3, "groups": 2, "dilation": (3, 1)})),
    ((256, 2, 1), (40, 256, nn.ConvTranspose3d, {"kernel_size": (2, 3, 1), "stride": (1, 2, 3), "padding": (1, 1, 0)})),
    ((256, 1, 8), (128, 200, nn.Conv1d, {"kernel_size": 5, "stride": 2, "padding": 1})),
    # Neighbours along the width are columns of one product.
    ((128, 1, 1), (24, 40, nn.ConvTranspose2d, {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1})),
    ((64, 2, 1), (32, 48, nn.ConvTranspose3d, {"kernel_size": 4, "stride": 2, "padding": 1, "groups": 2})),
    ((64, 1, 1), (32, 64, nn.ConvTranspose2d, {"kernel_size": 3, "stride": 5, "padding": 1, "dilation": 2})),
    ((64, 1, 1), (16, 33, nn.ConvTranspose1d, {"kernel_size": 16, "stride": 8, "padding": 4})),
    ((128, 1, 2), (64, 99, nn.ConvTranspose2d, {"kernel_size": (2, 7), "stride": (2, 7)})),
    ((160, 1, 1), (48, 36, nn.ConvTranspose2d, {"kernel_size": (2, 5), "stride": (1, 4), "padding": (0, 2)})),
    ((64, 1, 1), (8, 3, nn.ConvTranspose1d, {"kernel_size": 3, "stride": 2, "dilation": 2, "padding": 2})),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("tile", "layer"), TILES)
def test_windows_that_the_copy_engine_lays_out(
    cuda: Device, tile: tuple[int, int, int], layer: tuple[int, int, type[nn.Module], dict[str, object]], dtype: str
) -> None:
    channels, filters, kind, options = layer
    torch.manual_seed(3)
    reference, tuned = (made(channels, filters, options, kind).cuda() for made in (Model, Tuned))
    reference, tuned = (model.to(getattr(torch, dtype)) for model in (reference, tuned))
    tuned.load_state_dict(reference.state_dict())
    columns, cluster, slices = tile
    sides = (5, 6, 9) if slices > 1 else (9, 21, 30)
    x = torch.randn(5, channels, *sides[-(tuned.bias.dim() - 2) :], device="cuda", dtype=getattr(torch, dtype))
    for given in ("nchw", "channels_last")[: 1 + (x.dim() == 4 and channels % 8 == 0)]:
        x = x.contiguous(memory_format=memory_format(given, x.dim()))
        problem = tuned.problem(x)
        assert problem is not None, tuned.reason
        wanted = {"product_columns": columns, "product_cluster": cluster, "product_slices": slices}
        space = tuned.kernel.space
        ways = {("im2col", False): ALLOWED[dtype], ("im2col", True): ALLOWED[dtype]}
        if dtype == "float32":
            ways["im2col_parts", True] = 2e-5
        for (way, early), allowed in ways.items():
            asked: dict[str, Value] = {"convolution": way, "early_launches": early, **wanted}
            chosen = space.choose(asked, problem, cuda)
            if early and "phase_columns" in chosen:  # once as products of their own
                chosen = space.choose({**asked, "phase_columns": False}, problem, cuda)
            tuned.pin(build_plan(tuned.kernel, chosen, problem, cuda, compiler_for(cuda)))
            with torch.no_grad():
                output = tuned(x)
                assert output.stride() == reference(x).stride()
            assert error(output, reference, [x]) < allowed, (given, way, early)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.Conv2d, {"kernel_size": 3}),
        (nn.Conv2d, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (nn.ConvTranspose2d, {"kernel_size": 3, "stride": 2, "padding": 1}),  # its other algorithms differ in this
    ],
)
def test_operands_are_rounded_as_cudnn_rounds_them(
    cuda: Device, kind: type[nn.Module], options: dict[str, object]
) -> None:
    torch.manual_seed(3)
    reference, tuned = (made(64, 64, options, kind).cuda() for made in (Model, Tuned))
    tuned.load_state_dict(reference.state_dict())
    x = torch.rand(16, 64, 64, 64, device="cuda")  # multiples of 2^-24: there are ties
    problem = tuned.problem(x)
    assert problem is not None, tuned.reason
    chosen = tuned.kernel.space.choose({"convolution": "im2col"}, problem, cuda)
    tuned.pin(build_plan(tuned.kernel, chosen, problem, cuda, compiler_for(cuda)))
    with torch.no_grad():
        wanted = reference(x)
        assert (tuned(x) - wanted).abs().max() < 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(cuda: Device, name: str, dtype: str) -> None:
    sizes = {"channels": 64, "outputs": 64, "height": 33, "width": 40}
    served = set()
    for given in LAYOUTS:
        for pick, way in enumerate(WAYS):
            known = {key: size for key, size in sizes.items() if key != "outputs" or name != "gate"}
            reference, tuned, inputs = pair(name, getattr(torch, dtype), given, "cuda", known)
            output = outputs(tuned, cuda, inputs, pick, way)
            if output is not None:
                served.add(way)
                assert error(output, reference, inputs) < ALLOWED[dtype], (given, way)
                with torch.no_grad():
                    assert output.stride() == reference(*inputs).stride()
    # Five rows of so many channels are more than shared memory holds beside the filters.
    by_library = name in ("grouped_hardswish", "residual")
    assert served >= {"strict"} | (set() if by_library else {"implicit_gemm"})


@pytest.mark.parametrize("name", ["relu_bias", "gate"])
def test_what_is_not_finite_stays_so(cuda: Device, name: str) -> None:
    for way in WAYS:
        reference, tuned, inputs = pair(name, torch.float32, "nchw", "cuda")
        inputs[0][0, 2, 3, 4], inputs[0][1, 0, 0, 0] = float("nan"), float("inf")
        output = outputs(tuned, cuda, inputs, 1, way)
        if output is not None:
            with torch.no_grad():
                wanted = reference(*inputs)
            assert torch.equal(output.isnan(), wanted.isnan()), way
            assert torch.equal(output.isinf(), wanted.isinf()), way


@pytest.mark.parametrize("given", LAYOUTS)
def test_an_infinity_in_a_filter_times_zeros_around_an_image_is_no_number(cuda: Device, given: str) -> None:
    options = (64, 128, GEOMETRIES["padded"])
    reference, tuned = Model(*options).cuda().eval(), Tuned(*options).cuda().eval()
    tuned.load_state_dict(reference.state_dict())
    for model in (reference, tuned):
        model.conv.weight.data[5, 3, 0, 0] = float("inf")
    x = torch.randn(2, 64, 20, 24, device="cuda").contiguous(memory_format=LAYOUTS[given])
    with torch.no_grad():
        wanted = reference(x).isnan()
    assert wanted[:, 5].any() and not wanted[:, 6:].any()
    for pick, way in enumerate(("im2col", "im2col_parts")):
        output = outputs(tuned, cuda, [x], pick, way)
        assert output is not None and torch.equal(output.isnan(), wanted), way
