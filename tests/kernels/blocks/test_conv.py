"""Blocks for convolutions on the CPU: every geometry, layout and type, operands, and what the block refuses."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from convolved import EXAMPLES, GEOMETRIES, LAYOUTS, OTHERS, Model, Tuned, error, example, pair, passes
from hopper import HOPPER
from one_file import load, pinned, run
from sampling import slow_but
from torch import nn

from tunebench.kernels.blocks.conv_launches import prepared
from tunebench.kernels.shared.images import geometry_of_axes, geometry_of_layer, memory_format
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.problem import Problem

DIVERSE = ("one side, same, even", "three sides, dilated groups", "transposed, strided", "transposed, three sides")
"""Layers of `OTHERS` that have between them what the others have."""
ALLOWED = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_every_type_and_layout(name: str, dtype: torch.dtype) -> None:
    ways = itertools.product(LAYOUTS, LAYOUTS) if dtype == torch.float32 else [("channels_last", "nchw")]
    for given, layout in ways:
        reference, tuned, inputs = pair(name, dtype, given)
        output = run(tuned, passes("strict", layout), *inputs)
        assert error(output, reference, inputs) < ALLOWED[dtype]
        with torch.no_grad():
            assert output.stride() == reference(*inputs).stride()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_through_half_precision(name: str) -> None:
    for given, layout in (("nchw", "channels_last"), ("channels_last", "channels_last")):
        reference, tuned, inputs = pair(name, torch.float32, given)
        inputs[0][1] *= 1e6  # out of range: computed again
        output = run(tuned, passes("fp16", layout), *inputs)
        assert error(output, reference, inputs) < 1e-3
        assert (
            error(output[1:], reference, [one[1:] if isinstance(one, torch.Tensor) else one for one in inputs]) < 2e-6
        )


@pytest.mark.slow
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_every_geometry(geometry: str) -> None:
    ways: list[tuple[str, str, str, int, int]]
    ways = [("nchw", "nchw", "fp16", 1, 1), ("channels_last", "nchw", "strict", 1, 1)]
    ways += [("nchw", "nchw", "direct", 1, 4), ("channels_last", "channels_last", "direct", 1, 1)]
    ways += [("nchw", "nchw", "direct", 16, 1), ("channels_last", "channels_last", "direct", 4, 1)]
    for given, weight, convolution, filters, columns in ways:
        torch.manual_seed(3)
        reference = Model(8, 16, GEOMETRIES[geometry]).to(memory_format=LAYOUTS[weight])
        tuned = Tuned(8, 16, GEOMETRIES[geometry]).to(memory_format=LAYOUTS[weight])
        tuned.load_state_dict(reference.state_dict())
        x = torch.randn(3, 8, 13, 12).contiguous(memory_format=LAYOUTS[given])
        x[2] *= 1e-7  # out of range of half precision
        of_thread = {"direct_filters": filters, "direct_rows": 2, "direct_columns": columns, "direct_block_size": 128}
        output = run(tuned, passes(convolution, given, **of_thread), x)
        assert error(output, reference, [x]) < (1e-3 if convolution == "fp16" else 2e-6)
        with torch.no_grad():
            wanted = reference(x)
        assert (output.shape, output.stride()) == (wanted.shape, wanted.stride())
        assert error(output[2:], reference, [x[2:]]) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(DIVERSE, OTHERS))
def test_layers_with_other_sides_and_transposed_ones(name: str) -> None:
    layer, options = OTHERS[name]
    for given, layout, convolution in (
        ("nchw", "nchw", "strict"),
        ("nchw", "channels_last", "fp16"),
        ("channels_last", "nchw", "fp16"),
        ("channels_last", "nchw", "direct"),
    ):
        if convolution == "direct" and name.startswith("transposed"):
            continue
        torch.manual_seed(3)
        reference, tuned = Model(8, 16, options, layer), Tuned(8, 16, options, layer)
        tuned.load_state_dict(reference.state_dict())
        sides = (7, 6, 9)[-(tuned.bias.dim() - 2) :]
        x = torch.randn(3, 8, *sides)
        if x.dim() > 3:
            x = x.contiguous(memory_format=memory_format(given, x.dim()))
        x[2] *= 1e-7  # out of range of half precision
        of_thread = {"direct_filters": 4, "direct_rows": 4, "direct_columns": 1, "direct_block_size": 128}
        output = run(tuned, passes(convolution, layout, **of_thread), x)
        assert error(output, reference, [x]) < (1e-3 if convolution == "fp16" else 2e-6)
        with torch.no_grad():
            wanted = reference(x)
        assert (output.shape, output.stride()) == (wanted.shape, wanted.stride())
        assert error(output[2:], reference, [x[2:]]) < 2e-6
        problem = tuned.problem(x)
        assert problem is not None and geometry_of_axes(problem.axes) == geometry_of_layer(tuned.conv)


@pytest.mark.parametrize(("convolution", "allowed"), [("im2col", 2.0**-11), ("im2col_parts", 2.0**-20)])
@pytest.mark.parametrize(
    ("layer", "channels", "filters", "options"),
    [
        (nn.Conv2d, 20, 40, {"kernel_size": (3, 2)}),
        (nn.Conv3d, 64, 24, {"kernel_size": 2, "groups": 2}),
        (nn.ConvTranspose2d, 32, 72, {"kernel_size": 3, "groups": 2}),
        # Filters of more elements than are staged at once, and those that no packs divide.
        (nn.Conv2d, 700, 6, {"kernel_size": (3, 2)}),
        (nn.ConvTranspose2d, 480, 4, {"kernel_size": 3}),
        (nn.Conv2d, 21, 5, {"kernel_size": 3}),
        # And those that threads keep until their scale is known.
        (nn.Conv2d, 1028, 3, {"kernel_size": 3}),
    ],
)
def test_operands_as_the_copy_engine_reads_them(
    layer: Any, channels: int, filters: int, options: dict[str, Any], convolution: str, allowed: float
) -> None:
    torch.manual_seed(3)
    model = Tuned(channels, filters, options, layer)
    weight, groups = model.conv.weight.detach(), options.get("groups", 1)
    x = torch.rand(2, channels, *(7, 9, 5)[: weight.dim() - 2]) * 4 + 0.5
    for given in ("nchw", "channels_last")[: 1 + (channels % 8 == 0)]:
        x = x.contiguous(memory_format=memory_format(given, x.dim()))
        around = {"input_block_size": 128, "input_vector_bytes": 16, "input_tile": 32, "input_items": 2}
        layout = {"convolution_layout": "channels_last"}
        plan = pinned(model, Configuration({"convolution": convolution, **layout, **around}), x)
        with torch.no_grad():
            operands = prepared(plan, x, weight)
        parts = 1 + (convolution == "im2col_parts")
        halves = operands.x.double().unflatten(-1, (parts, -1)).sum(-2)[..., :channels].movedim(-1, 1)
        assert ((halves / 64 - x).abs() <= allowed * x).all()
        copied = -(-channels // groups // 16) * 16
        rows = operands.weight.double().view(groups, -1, weight[0, 0].numel(), parts, copied).sum(3)
        assert operands.factors is not None and operands.largest is not None
        made = (
            rows[:, : filters // groups, :, : channels // groups].flatten(0, 1) * (64 * operands.factors)[:, None, None]
        )
        wanted = weight
        if isinstance(model.conv, nn.ConvTranspose2d):  # (channels, filters of a group, ...)
            wanted = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        wanted = wanted.flatten(2).transpose(1, 2)
        largest = wanted.abs().amax((1, 2), keepdim=True)
        assert ((made - wanted).abs() <= allowed * largest).all()
        found = operands.largest.view(torch.float32).amax(1)
        assert torch.equal(found, x.flatten(1).amax(1))


@pytest.mark.parametrize(
    ("options", "first"),  # A tap k sees, from output number o on, image number (o + padding - k * dilation) / stride.
    [
        ({"kernel_size": (2, 3), "stride": 2, "padding": 1, "output_padding": 1}, 0),
        ({"kernel_size": (1, 4), "stride": (1, 2), "padding": (0, 1)}, -1),
        ({"kernel_size": (3, 2), "stride": (2, 2), "groups": 2}, 0),
        ({"kernel_size": (1, 3), "stride": (1, 2), "padding": (0, 3), "dilation": (1, 3), "groups": 2}, -1),
        ({"kernel_size": (1, 7), "stride": (1, 4), "padding": (0, 2)}, -1),
        ({"kernel_size": (1, 2), "stride": (1, 2), "dilation": (1, 2)}, -1),
        ({"kernel_size": (2, 3), "stride": 5, "padding": 1, "dilation": 2}, 0),
        ({"kernel_size": (1, 16), "stride": (1, 8), "padding": (0, 4)}, -1),
        ({"kernel_size": (1, 5), "stride": (1, 3), "padding": (0, 2), "groups": 2}, 0),
    ],
)
def test_outputs_that_are_neighbours_are_columns_of_a_transposed_convolution(
    options: dict[str, Any], first: int
) -> None:
    torch.manual_seed(3)
    model = Tuned(32, 44, options, nn.ConvTranspose2d)
    layer, x = model.conv, torch.randn(2, 32, 5, 6)
    around = {"input_block_size": 128, "input_vector_bytes": 16, "input_tile": 32, "phase_columns": True}
    plan = pinned(model, Configuration({"convolution": "im2col", "convolution_layout": "channels_last", **around}), x)
    with torch.no_grad():
        operands = prepared(plan, x, layer.weight)
    (height, width), stride, groups = layer.kernel_size, layer.stride[1], layer.groups
    channels, filters = 32 // groups, 44 // groups
    assert operands.factors is not None
    scaled = operands.factors.double().view(groups, filters)[:, :, None, None] * 64
    wanted = layer.weight.detach().double().unflatten(0, (groups, channels))  # and (filters, height, width)
    places = (layer.padding[1] + stride - 1) // stride - first + 1
    columns = -(-filters * stride // 32) * 32
    rows = operands.weight.double().view(groups, columns, height, places, channels)
    met = set()
    for phase, place in itertools.product(range(stride), range(places)):
        tap, rest = divmod(phase + layer.padding[1] - (first + place) * stride, layer.dilation[1])
        of_phase = rows[:, phase : filters * stride : stride, :, place]
        if rest == 0 and 0 <= tap < width:
            met.add(tap)
            difference = of_phase * scaled - wanted[..., tap].permute(0, 2, 3, 1)
            assert difference.abs().max() <= 2.0**-11 * wanted.abs().max()
        else:
            assert not of_phase.any()
    assert len(met) == width and not rows[:, filters * stride :].any()


@pytest.mark.parametrize("filters", [1, 4])
def test_direct_convolutions_count_in_64_bits_where_windows_reach_far(filters: int) -> None:
    options = {"kernel_size": 3, "stride": 40_000, "groups": 8, "padding": 1}
    torch.manual_seed(3)
    reference, tuned = Model(8, 16, options), Tuned(8, 16, options)
    tuned.load_state_dict(reference.state_dict())
    x = torch.randn(2, 8, 5, 40_003)
    around = {"direct_filters": filters, "direct_rows": 1, "direct_columns": 1, "direct_block_size": 128}
    output = run(tuned, passes("direct", "nchw", **around), x)
    assert output.shape == (2, 16, 1, 2)
    assert error(output, reference, [x]) < 2e-6


def test_of_one_side_what_is_not_contiguous_is_the_references() -> None:
    for layer in (nn.Conv1d, nn.ConvTranspose1d):
        model = Tuned(8, 16, {"kernel_size": 3}, layer)
        x = torch.randn(3, 9, 8).transpose(1, 2)
        assert model.problem(x) is None and "an input is not contiguous" in model.reason
        problem = model.problem(torch.randn(3, 8, 3))
        assert problem is not None and problem.options["output"] == "nchw"


def test_the_tensor_cores_kernels_are_of_two_sides() -> None:
    space = Tuned.kernel.space
    for name, (layer, options) in OTHERS.items():
        model = Tuned(16, 16, options, layer).half()
        problem = model.problem(torch.randn(3, 16, *(9, 9, 9)[-(model.bias.dim() - 2) :]).half())
        assert problem is not None
        found = {one["convolution"] for one in space.enumerate(problem, HOPPER)}
        assert ("implicit_gemm" in found) == (name == "one side")


def test_a_problem_names_what_is_not_usual_of_its_geometry() -> None:
    def axes(geometry: str) -> dict[str, int]:
        model = Tuned(8, 16, GEOMETRIES[geometry])
        problem = model.problem(torch.randn(2, 8, 13, 12))
        assert problem is not None
        assert geometry_of_axes(problem.axes) == geometry_of_layer(model.conv)
        sizes = ("batch", "in_channels", "height", "width", "out_channels", "kernel_height", "kernel_width")
        return {name: size for name, size in problem.axes.items() if name not in sizes}

    assert axes("plain") == {}
    assert axes("padded") == {"padding_height": 2, "padding_width": 2}
    assert axes("same, even") == {"padding_height": 1, "padding_width": 3}
    assert axes("by channel") == {"stride_height": 2, "stride_width": 2, "groups": 8}


def test_who_lies_otherwise_is_served_by_the_reference() -> None:
    _, residual, (x, other, factor) = pair("residual", torch.float32, "nchw")
    assert residual.problem(x, other, factor) is not None
    assert residual.problem(x, other.contiguous(memory_format=torch.channels_last), factor) is None
    assert residual.reason == "'residual' does not lie in memory as the output does"
    assert residual.problem(x, other[:, :1], factor) is None
    assert residual.problem(x, other, None) is None
    _, gate, (x,) = pair("gate", torch.float32, "nchw")
    gate.get_submodule("gate.0").stride = (2, 2)  # type: ignore[assignment]
    assert gate.problem(x) is None and gate.reason == "'x' does not lie in memory as the output does"
    model = Tuned(8, 16, {"kernel_size": 3})
    images = torch.randn(2, 8, 9, 9)
    model.bias = nn.Parameter(torch.randn(16, 1))
    assert model.problem(images) is None and "has the shape (16, 1), not (16, 1, 1)" in model.reason
    model.bias = nn.Parameter(torch.randn(16, 1, 1))
    assert model.problem(images) is not None
    assert model.problem(images[:, :4].contiguous()) is None and "4 channels" in model.reason
    assert model.problem(images[:, :, :2].contiguous()) is None and "larger" in model.reason
    model.conv.stride = (0, 0)
    assert model.problem(images) is None and "in steps of 1 or more" in model.reason
    model.conv.stride, model.conv.padding_mode = (1, 1), "reflect"
    assert (
        model.problem(images) is None
        and model.reason == "'conv' is no convolution in steps of 1 or more that pads with zeros"
    )
    with torch.no_grad():
        assert torch.equal(model(images), model.reference_forward(images))


MODEL = """
def __init__(self):
    super().__init__()
    self.conv = nn.Conv2d(3, 4, 3)

def forward(self, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(self.conv(x))
"""


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ('function = "relu(value)"', "ModelNew.layer: give the path of a convolution in the module"),
        ('layer = "conv"', "ModelNew.function: give a device function"),
        ('layer = "conv"\nfunction = "relu(values)"', r"unknown name 'values' \(known: x, value\)"),
        (
            'layer = "conv"\nfunction = "value * w"\nper_feature = ("w",)',
            "per_feature: this block has no such operands; it has scalars, per_channel, per_tensor",
        ),
        (
            'layer = "conv"\nfunction = "relu(value)"\nwindows = {"strides": 2}',
            "windows: there is no 'strides': the legal names are stride, padding, dilation, transposed",
        ),
        (
            'layer = "conv"\nfunction = "relu(value)"\nwindows = {"stride": [2, 2]}',
            r"windows: 'stride' is \[2, 2\]: give a number, or a tuple of one for each side",
        ),
        (
            'layer = "conv"\nfunction = "relu(value)"\noutput_layout = "nhwc"',
            "output_layout: there is no 'nhwc': give \"nchw\", or nothing for torch's",
        ),
    ],
)
def test_wrong_attributes_are_one_line(tmp_path: Path, block: str, message: str) -> None:
    with pytest.raises(KernelFolderError, match=message) as caught:
        load(tmp_path / "wrong.py", "blocks.Conv", MODEL, block)
    assert "\n" not in str(caught.value)


def test_a_layer_that_is_none(tmp_path: Path) -> None:
    body = MODEL.replace("    self.conv", "    self.relu = nn.ReLU()\n    self.conv")
    x = torch.randn(2, 3, 9, 9)
    model = load(tmp_path / "layer.py", "blocks.Conv", body, 'layer = "relu"\nfunction = "relu(value)"')()
    assert (
        model.problem(x) is None
        and model.reason == "'relu' is no convolution in steps of 1 or more that pads with zeros"
    )
    model = load(tmp_path / "other.py", "blocks.Conv", body, 'layer = "convolution"\nfunction = "relu(value)"')()
    with pytest.raises(KernelFolderError, match=r"ModelNew.layer: the model has no 'convolution'"):
        model.problem(x)


FILTERS = """
def __init__(self):
    super().__init__()
    self.weight = nn.Parameter(torch.randn({own}))

def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu({function}(x, {weight}, None, {windows}))
"""
FUNCTIONS = {
    "of one side": ("nn.functional.conv1d", "y", "stride=2, padding=1", {"stride": 2, "padding": 1}, (8, 6, 3)),
    "of two sides": ("nn.functional.conv2d", "y", "dilation=(1, 2)", {"dilation": (1, 2)}, (8, 6, 3, 2)),
    "in groups": ("nn.functional.conv2d", "y", "groups=2", {"groups": 2}, (8, 3, 3, 3)),
    "transposed": (
        "nn.functional.conv_transpose3d",
        "y",
        "stride=2, output_padding=1",
        {"stride": 2, "output_padding": 1, "transposed": 1},
        (6, 8, 3, 2, 1),
    ),
    "of a parameter": ("nn.functional.conv2d", "self.weight", "padding=1", {"padding": 1}, (8, 6, 3, 3)),
}


@pytest.mark.parametrize(("function", "weight", "windows", "told", "shape"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_filters_without_a_layer(
    tmp_path: Path, function: str, weight: str, windows: str, told: dict[str, Any], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    is_given = weight == "y"
    body = FILTERS.format(own=(1,) if is_given else shape, function=function, weight=weight, windows=windows)
    if not is_given:
        body = body.replace(", y: torch.Tensor", "")
    text = f'layer = "{weight.removeprefix("self.")}"\nwindows = {told}\nfunction = "relu(value)"'
    model = load(tmp_path / "filters.py", "blocks.Conv", body, text)()
    x, filters = torch.randn(2, 6, *[9] * (len(shape) - 2)), torch.randn(shape)
    given = (x, filters) if is_given else (x,)
    output = run(model, passes("strict", "nchw"), *given)
    torch.testing.assert_close(output, model.reference_forward(*given), rtol=1e-4, atol=1e-4)
    if is_given:
        assert model.problem(x, filters[0]) is None and model.reason
        assert model.problem(x[0], filters) is None and "dimensions" in model.reason


def of_hopper(name: str, dtype: str, channels: int = 16, **wanted: Any) -> tuple[Problem, list[Configuration]]:
    """An example's problem there, and what its space has with these values."""
    _, tuned, inputs = pair(name, getattr(torch, dtype), "nchw")
    problem = tuned.problem(*inputs)
    assert problem is not None
    filters = max(problem.axes["out_channels"], int(wanted.get("product_columns", 0)))
    axes = {**problem.axes, "in_channels": channels, "out_channels": filters}
    problem = Problem(axes, dtype, {**problem.options, "precision": "tf32" if dtype == "float32" else "strict"})
    space = tuned.kernel.space.restrict({key: [value] for key, value in wanted.items()})
    return problem, list(space.enumerate(problem, HOPPER))


IMPLICIT = {"convolution": "implicit_gemm"}
IM2COL = {"convolution": "im2col"}
PARTS = {"convolution": "implicit_parts"}
THREADS, BULK = (IMPLICIT | {"writes": way} for way in ("threads", "bulk"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [
        *((name, "float32", {"convolution": "strict"}) for name in EXAMPLES),
        ("relu_bias", "float32", THREADS),
        ("relu_bias", "float32", BULK),
        ("residual", "float32", BULK | {"register_rows": 0}),
        ("gate", "bfloat16", THREADS),
        ("gate", "bfloat16", BULK | {"register_rows": 1}),
        ("relu_bias", "float32", IM2COL | {"product_columns": 64}),
        ("residual", "float32", IM2COL | {"product_columns": 256, "product_slices": 8}),
        ("relu_bias", "float32", IM2COL | {"product_columns": 128, "product_slices": 3}),
        ("gate", "bfloat16", IM2COL | {"product_columns": 192, "product_cluster": 2}),
        ("subtract_mish", "float32", {"convolution": "im2col_parts", "product_columns": 160}),
        ("relu_bias", "float32", PARTS | {"writes": "threads"}),
        ("subtract_mish", "float32", PARTS | {"writes": "bulk", "register_rows": 1}),
    ],
)
def test_nvrtc_builds_for_hopper_without_spills(
    nvrtc: NvrtcCompiler, name: str, dtype: str, wanted: dict[str, Any]
) -> None:
    problem, found = of_hopper(name, dtype, **wanted)
    build = nvrtc.compile(example(name).kernel.variant(found[-1], problem, "sm_90"))
    assert build.figures["finish"].registers and build.code.startswith(b"\x7fELF")
    assert not any(figures.spill_stores for figures in build.figures.values())


@pytest.mark.slow
@pytest.mark.parametrize("turns", [False, True])
def test_as_many_filters_as_registers_hold_do_not_spill(nvrtc: NvrtcCompiler, turns: bool) -> None:
    problem, found = of_hopper("relu_bias", "float32", 64, **BULK, register_rows=2, turns=turns)
    assert {one["ring_rows"] for one in found} == {4, 5, 6}
    build = nvrtc.compile(example("relu_bias").kernel.variant(found[0], problem, "sm_90"))
    assert not any(figures.spill_stores for figures in build.figures.values())
    assert "Potential Performance Loss" not in build.log


@pytest.mark.parametrize(("rows", "columns", "stride"), [(8, 1, 1), (4, 1, 2), (4, 4, 1), (2, 8, 2)])
def test_a_window_of_each_channel_stays_in_registers(
    nvrtc: NvrtcCompiler, rows: int, columns: int, stride: int
) -> None:
    model = Tuned(32, 32, {"kernel_size": 5, "groups": 32, "stride": stride})
    problem = model.problem(torch.randn(2, 32, 40, 40))
    assert problem is not None
    wanted = {"convolution": ["direct"], "direct_rows": [rows], "direct_columns": [columns]}
    space = model.kernel.space.restrict(wanted)
    chosen = next(iter(space.enumerate(problem, HOPPER)))
    build = nvrtc.compile(model.kernel.variant(chosen, problem, "sm_80"))
    assert not build.figures["direct_convolution"].spill_stores


@pytest.mark.parametrize(("filters", "rows"), [(4, 8), (8, 10), (16, 8)])
def test_sums_of_several_filters_stay_in_registers(nvrtc: NvrtcCompiler, filters: int, rows: int) -> None:
    model = Tuned(3, 24, {"kernel_size": 3}, nn.Conv3d)
    problem = model.problem(torch.randn(2, 3, 24, 32, 32))
    assert problem is not None
    wanted = {"convolution": ["direct"], "direct_filters": [filters], "direct_rows": [rows]}
    chosen = next(iter(model.kernel.space.restrict(wanted).enumerate(problem, HOPPER)))
    build = nvrtc.compile(model.kernel.variant(chosen, problem, "sm_90"))
    assert not build.figures["direct_convolution"].spill_stores


def test_where_the_copy_engine_writes() -> None:
    def found(channels: int, dtype: str = "float32", output: str = "nchw") -> set[tuple[object, object]]:
        problem, _ = of_hopper("relu_bias", dtype, channels, **IMPLICIT)
        problem = Problem(problem.axes, dtype, {**problem.options, "output": output})
        space = example("relu_bias").kernel.space.restrict({name: [value] for name, value in IMPLICIT.items()})
        return {(one["writes"], one.get("register_rows")) for one in space.enumerate(problem, HOPPER)}

    assert found(16) == {("threads", None), *(("bulk", rows) for rows in range(4))}
    # Of 3 x 3 filters of 64 channels registers hold two rows at most; one leaves enough shared memory to halves alone.
    assert found(64) == {("threads", None), ("bulk", 2)}
    assert found(64, "bfloat16") == {("threads", None), ("bulk", 1), ("bulk", 2)}
    assert found(16, output="channels_last") == {("threads", None)}


@pytest.mark.slow
def test_what_goes_by_no_implicit_product() -> None:
    def ways(geometry: str, channels: int = 16, filters: int = 16) -> set[object]:
        problem = Tuned(8, 16, GEOMETRIES[geometry]).problem(torch.randn(2, 8, 30, 30))
        assert problem is not None
        axes = {**problem.axes, "in_channels": channels, "out_channels": filters}
        problem = Problem(axes, "float32", {**problem.options, "precision": "tf32"})
        space = Tuned.kernel.space.enumerate(problem, HOPPER)
        return {member["convolution"] for member in space}

    for geometry in ("plain", "padded", "same, even", "dilated", "1 x 1"):
        for channels in (8, 12, 16, 24):
            assert "implicit_gemm" in ways(geometry, channels), geometry
            assert channels > 16 or "implicit_parts" in ways(geometry, channels), geometry
            assert "im2col" in ways(geometry, channels), geometry
    # In halves of both kinds these filters do not fit into shared memory.
    assert "implicit_parts" in ways("1 x 1", 32) and "implicit_parts" not in ways("plain", 32)
    for geometry in ("strided", "groups", "by channel", "dilated groups"):
        found = ways(geometry)
        assert "tf32" in found and "implicit_gemm" not in found, geometry
        assert ("fp16" in found) == ("im2col" not in found), geometry
    # Copies of the copy engine hold 16 channels of one group, or eight where it has columns enough.
    assert "im2col" in ways("strided", 3) and "im2col" not in ways("groups", 8)
    assert "im2col" in ways("groups", 32, 64) and "im2col" not in ways("groups", 32, 60)
    assert "im2col" in ways("groups", 64) and "im2col" not in ways("groups", 96 - 4)
    assert "im2col" in ways("plain", filters=2) and "im2col_parts" in ways("plain", filters=1)
    assert "im2col" not in ways("plain", filters=1)
    assert "direct" in ways("by channel") and "direct" in ways("plain", 3) and "direct" not in ways("plain")


def test_where_a_direct_thread_has_several_filters() -> None:
    def found(channels: int, filters: int, **options: Any) -> set[object]:
        problem = Tuned(channels, filters, {"kernel_size": 3, **options}).problem(torch.randn(2, channels, 30, 30))
        assert problem is not None
        space = Tuned.kernel.space.restrict({"convolution": ["direct"]})
        return {one["direct_filters"] for one in space.enumerate(problem, HOPPER)}

    assert found(3, 24) == {4, 8, 16} and found(3, 4) == {4} and found(3, 6) == {4, 8}
    assert found(3, 2) == found(16, 64, groups=16) == {1}
    assert found(16, 64, groups=8) == {4, 8}
    assert found(4, 8, kernel_size=17) == {4}  # shared memory holds no more


def test_the_default_is_the_best_guess_where_it_is_valid() -> None:
    ampere, cpu = replace(HOPPER, architecture="sm_80"), find_device("cpu")

    def default(
        device: Device, filters: int = 128, precision: str = "tf32", channels: int = 64, **options: Any
    ) -> tuple[object, ...]:
        problem = Tuned(channels, filters, {"kernel_size": 3, **options}).problem(torch.empty(2, channels, 30, 30))
        assert problem is not None
        problem = Problem(problem.axes, "float32", {**problem.options, "precision": precision})
        chosen = Tuned.kernel.space.default_for(problem, device)
        return chosen["convolution"], chosen.get("product_columns")

    assert default(HOPPER) == ("im2col", 128) and default(HOPPER, 48) == ("im2col", 64)
    assert default(HOPPER, channels=8) == ("im2col", 128) and default(HOPPER, 48, channels=8) == ("im2col", 64)
    assert default(HOPPER, precision="strict") == ("im2col_parts", 128)
    assert default(HOPPER, 64, groups=64)[0] == "tf32"
    assert default(ampere)[0] == "tf32" and default(ampere, precision="strict")[0] == "strict"
    assert default(cpu, precision="strict")[0] == "strict"


def test_a_study_begins_with_sums_that_are_divided_where_multiprocessors_would_idle() -> None:
    def first(batch: int, side: int, channels: int, precision: str = "tf32", **options: Any) -> tuple[object, ...]:
        layer = Tuned(channels, channels, {"kernel_size": 3, "padding": 1, **options})
        problem = layer.problem(torch.empty(batch, channels, side, side))
        assert problem is not None
        problem = Problem(problem.axes, "float32", {**problem.options, "precision": precision})
        valid = Tuned.kernel.space.enumerate(problem, HOPPER)
        number = next(one for start in Tuned.kernel.space.starts if (one := valid.completing(start)) is not None)
        return valid[number]["convolution"], valid[number].get("product_slices")

    assert first(2, 8, 256) == ("im2col", 8)  # 1 · 2 tiles
    assert first(2, 16, 1280) == ("im2col", 2)  # 4 · 10 tiles: no 40 clusters of three have 132 multiprocessors
    assert first(4, 16, 512) == ("im2col", 3)  # 8 · 4 tiles
    assert first(2, 32, 640) == first(64, 28, 128) == ("im2col", 1)
    assert first(2, 16, 64, precision="strict") == ("im2col_parts", 1)
    assert first(2, 16, 64, groups=64) == ("direct", None)
    # The reference of few channels is often not rounded.
    assert first(64, 64, 8) == ("implicit_parts", None)
