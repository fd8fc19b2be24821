"""conv_min_add_mul: Conv2d, min with a constant, a bias per channel and a scale, in few passes or in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import torch

from tunebench import (
    Constraint,
    Device,
    Kernel,
    Plan,
    Problem,
    SearchSpace,
    Tunable,
    TunedModule,
    Work,
    ceil_div,
    constraints,
)
from tunebench.kernels.conv_min_add_mul.reference import Model
from tunebench.kernels.runtime.tuned_module import own_tensors
from tunebench.kernels.shared import DTYPES, cudnn_graph
from tunebench.tuner.build import Argument
from tunebench.tuner.device import DeviceKind

_MAX_GRID = 2**31 - 1
_WEIGHT_THREADS = 128
_REPAIR_THREADS = 256
_REPAIR_BLOCKS = 4
"""Blocks of `repair` a multiprocessor: it almost never has work."""

_TILE_FILTERS = 128
_TILE_COLUMNS = 128
_IMPLICIT_THREADS = 384
_STAGING_BYTES = 8 * 320 * 4

_LONGEST_HALF_SUM = 16384
"""Products a sum in half precision: with more, scaled weights would be subnormal on average."""

_GRAPH = ("graph_fp16", "graph_tf32", "graph")
"""Convolutions by cuDNN's graph API; the last in the model's own half type."""
_HALF_INPUT = ("fp16", "graph_fp16")
_HALF_WEIGHT = (*_HALF_INPUT, "implicit_gemm")

_MEMORY_FORMAT = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


def _precision_allowed(convolution: str, problem: Problem, device: Device) -> bool:
    """Another precision than the type's own only where the reference's own convolution would run in TF32."""
    own = convolution in ("strict", "graph") or (_is_implicit(convolution) and problem.item_bytes == 2)
    return own or (problem.options["precision"] == "tf32" and device.kind is DeviceKind.CUDA)


def _sum_fits_half(convolution: str, problem: Problem) -> bool:
    return convolution not in _HALF_WEIGHT or _products(problem) <= _LONGEST_HALF_SUM


def _is_implicit(convolution: str) -> bool:
    return convolution == "implicit_gemm"


def _has_passes(convolution: str) -> bool:
    return convolution != "implicit_gemm"


def _is_graph(convolution: str) -> bool:
    return convolution in _GRAPH


def _graph_is_installed(convolution: str, problem: Problem, device: Device) -> bool:
    """Where `nvidia-cudnn-frontend` is, on an NVIDIA GPU, whose torch brings cuDNN."""
    right_type = problem.dtype in (("float16", "bfloat16") if convolution == "graph" else ("float32",))
    here = right_type and device.kind is DeviceKind.CUDA and cudnn_graph.is_installed()
    return convolution not in _GRAPH or here


def _graph_is_channels_last(convolution: str, convolution_layout: str) -> bool:
    return convolution not in _GRAPH or convolution_layout == "channels_last"


def _asks_cudnn(convolution: str, device: Device) -> bool:
    return convolution in ("strict", "tf32", "fp16") and device.kind is DeviceKind.CUDA


def _ring_holds_window(ring_rows: int, problem: Problem) -> bool:
    """The window of one row, and the next row of x."""
    return problem.axes["kernel_height"] < ring_rows


def _implicit_shared_bytes(problem: Problem, ring_rows: int) -> int:
    axes = problem.axes
    groups = ceil_div(axes["in_channels"], 16) * 2
    columns = _TILE_COLUMNS + ceil_div(axes["kernel_width"], 2) * 2
    filters = axes["kernel_height"] * axes["kernel_width"] * groups * _TILE_FILTERS * 16
    return filters + ring_rows * groups * columns * 16 + _STAGING_BYTES + (2 * ring_rows + 1) * 8


def _relays_input(convolution_layout: str, problem: Problem) -> bool:
    return convolution_layout != problem.options["input"]


def _converts_input(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    return convolution in _HALF_INPUT or _relays_input(convolution_layout, problem)


def _casts_input(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    return convolution in _HALF_INPUT and not _relays_input(convolution_layout, problem)


def _relays_output(convolution_layout: str, problem: Problem) -> bool:
    return convolution_layout != problem.options["output"]


def _finishes(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    """A pass of ours comes last: a graph leaves it nothing to do where its layout is the output's."""
    return convolution not in _GRAPH or _relays_output(convolution_layout, problem)


def _keeps_output(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    """A pass of ours comes last, in the convolution's own layout."""
    return convolution not in _GRAPH and not _relays_output(convolution_layout, problem)


def _may_overwrite(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    """The output may be the convolution's own memory: same type, same layout."""
    return convolution != "fp16" and _keeps_output(convolution, convolution_layout, problem)


SPACE = SearchSpace(
    tunables=(
        Tunable("convolution", ("strict", "tf32", "fp16", "implicit_gemm", *_GRAPH), default="tf32"),
        Tunable("ring_rows", (4, 5, 6, 8), when=_is_implicit),
        Tunable("strip_rows", (8, 16, 32, 64, 128), default=32, when=_is_implicit),
        Tunable("store_hint", ("normal", "streaming"), when=_is_implicit),
        Tunable("convolution_layout", ("nchw", "channels_last"), when=_has_passes),
        Tunable("graph_list", cudnn_graph.LISTS, when=_is_graph, host=True),
        Tunable("graph_plan", tuple(range(cudnn_graph.PLANS)), when=_is_graph, host=True),
        Tunable("benchmark", (False, True), when=_asks_cudnn, host=True),
        Tunable("input_block_size", (128, 256, 512), default=256, when=_converts_input),
        Tunable("input_vector_bytes", (4, 8, 16), when=_converts_input),
        Tunable("input_tile", (32, 64), when=_relays_input),
        Tunable("input_items", (1, 2, 4), when=_casts_input),
        Tunable("output_block_size", (128, 256, 512), default=256, when=_finishes),
        Tunable("output_vector_bytes", (4, 8, 16), when=_finishes),
        Tunable("output_tile", (32, 64), when=_relays_output),
        Tunable("output_items", (1, 2, 4), when=_keeps_output),
        Tunable("in_place", (False, True), when=_may_overwrite, host=True),
    ),
    constraints=(
        Constraint("precision_is_the_reference's", _precision_allowed),
        Constraint("sum_fits_half_precision", _sum_fits_half),
        constraints.block_fits("input_block_size"),
        constraints.block_fits("output_block_size"),
        # Warpgroup products are Hopper's.
        constraints.needs(
            "convolution", "implicit_gemm", dtypes=("float32", "float16", "bfloat16"), architectures=("sm_90",)
        ),
        Constraint("ring_holds_window", _ring_holds_window),
        constraints.shared_memory_fits(lambda ring_rows, problem: _implicit_shared_bytes(problem, ring_rows)),
        Constraint("cudnn_graph_is_installed", _graph_is_installed),
        Constraint("cudnn_graph_is_channels_last", _graph_is_channels_last),
    ),
)


def _products(problem: Problem) -> int:
    """Products that one output element sums."""
    axes = problem.axes
    return axes["in_channels"] * axes["kernel_height"] * axes["kernel_width"]


def work(problem: Problem) -> Work:
    """x, the weight and y cross memory once; a product and a sum for each weight of each output element."""
    axes = problem.axes
    pixels = (axes["height"] - axes["kernel_height"] + 1) * (axes["width"] - axes["kernel_width"] + 1)
    outputs = axes["batch"] * axes["out_channels"] * pixels
    inputs = axes["batch"] * axes["in_channels"] * axes["height"] * axes["width"]
    elements = inputs + outputs + axes["out_channels"] * _products(problem)
    return Work(bytes=elements * problem.item_bytes, operations=2 * outputs * _products(problem))


class ModelNew(TunedModule, Model):
    """`Model` of `reference.py`: a library's convolution between passes of our own, or a kernel that does it all.

    The library is cuDNN, through torch or, where `nvidia-cudnn-frontend` is installed, by its graph API, which takes
    halves to single precision, in one kernel with everything behind the convolution, and writes channels-last.

    Layout: as the reference's. The output is channels-last where x or the convolution's weight is, which is how torch
    decides; `model.to(memory_format=torch.channels_last)` therefore asks for it.

    Precision: as torch's flags allow at each call. Where `torch.backends.cudnn.conv.fp32_precision` is `tf32` (also set
    by `torch.backends.cudnn.allow_tf32`, and the default), the convolution may run in TF32 or in half precision with
    single-precision sums, which keeps TF32's mantissa and, by torch, rounds the sums to it as well; by cuDNN's graph
    the sums stay in single precision. Half precision lacks TF32's
    range: x is scaled by 64 and each channel's weight by a power of two. A sample whose largest absolute value is not 0
    and not within 1/64 and 1000, and a channel whose weight has no such scale, are found on the device, without waiting
    for it, and computed again in single precision by a plain kernel: right, and much slower. Within that range a
    sample's tiny elements keep an absolute error of at most 2⁻²⁵ of the sample's largest or of 1/64, whichever is more.
    A model in float16 or bfloat16 is convolved in that type, as the reference is, with single-precision sums.

    Nothing is kept between calls: the weight is converted in every forward.
    """

    kernel = Kernel.declare(
        __file__,
        SPACE,
        axes={
            "x": ("batch", "in_channels", "height", "width"),
            "conv.weight": ("out_channels", "in_channels", "kernel_height", "kernel_width"),
        },
        bulk_copies=("implicit_gemm",),
        compiled_axes=("in_channels", "kernel_height", "kernel_width"),
        compiled_options=dict.fromkeys(("input", "output"), tuple(_MEMORY_FORMAT)),
        dtypes=DTYPES,
        work=work,
    )

    def problem(self, x: torch.Tensor) -> Problem | None:
        """4-d batches, dense in NCHW or channels-last, no smaller than the filters."""
        if not self._is_as_built():
            return self.unserved("the constructor makes another convolution, or other constants")
        found = super().problem(x)
        if found is None:
            return None
        axes = found.axes
        if axes["height"] < axes["kernel_height"] or axes["width"] < axes["kernel_width"]:
            return self.unserved("the filters are larger than the images")
        layouts = (_layout(x), _layout(self.conv.weight))
        output = "channels_last" if "channels_last" in layouts else "nchw"
        return replace(found, options={"input": str(layouts[0]), "output": output, "precision": _precision(x)})

    def accepts_layout(self, name: str, tensor: torch.Tensor) -> bool:
        """Images and filters may be channels-last."""
        return name in ("x", "conv.weight") and _layout(tensor) is not None

    def settings(self) -> Hashable:
        """The flags that say what the reference's convolution may run in."""
        return torch.backends.cudnn.enabled, torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]

    def _is_as_built(self) -> bool:
        """Whether the modules and constants are those that the constructor makes."""
        conv = self.conv
        return (
            conv.bias is not None
            and conv.padding_mode == "zeros"
            and conv.padding in {(0, 0), "valid"}
            and (conv.stride, conv.dilation, conv.groups) == ((1, 1), (1, 1), 1)
            and self.bias.shape == (conv.weight.shape[0], 1, 1)
            and isinstance(self.constant_value, int | float)
            and isinstance(self.scaling_factor, int | float)
        )

    def tuned_forward(self, plan: Plan, x: torch.Tensor) -> torch.Tensor:
        """(batch, in_channels, height, width) to (batch, out_channels, height', width')."""
        # Rounded as the reference rounds it: to the default dtype first.
        numbers = (plan.once(_rounded, self.constant_value, torch.get_default_dtype()), self.scaling_factor)
        convolution, conv = plan["convolution"], self.conv
        weight, conv_bias = own_tensors(conv)
        (bias,) = own_tensors(self)
        if convolution not in _HALF_WEIGHT:
            layout = str(plan["convolution_layout"])
            weight = weight.contiguous(memory_format=_MEMORY_FORMAT[layout])
            source = x if layout == plan.problem.options["input"] else self._convert(plan, x, weight.dtype, None)
            return self._convolve_and_finish(plan, source, weight, conv_bias, bias, None, *numbers)
        halves, factors, largest = self._half_weight(plan, weight, x.shape[0])
        vectors = (conv_bias, bias, factors)
        if convolution == "implicit_gemm":
            output = self._implicit_gemm(plan, x, weight, halves, *vectors, largest, *numbers)
        else:
            source = self._convert(plan, x, halves.dtype, largest)
            output = self._convolve_and_finish(plan, source, halves, *vectors, *numbers)
        if largest is not None:
            self._repair(plan, x, weight, output, *vectors, largest, *numbers)
        return output

    @classmethod
    def make_ready(cls, plan: Plan) -> None:
        """Build cuDNN's graph, where the configuration runs one."""
        if plan["convolution"] in _GRAPH:
            cudnn_graph.prepare(_graph(plan))

    def _half_weight(
        self, plan: Plan, weight: torch.Tensor, samples: int
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """The scaled weight, the factors that undo the scales, and zeros for the largest value of each sample.

        A weight of a half type is as it is, without the other two.
        """
        scales = weight.dtype == torch.float32
        dtype = torch.float16 if scales else weight.dtype
        if plan["convolution"] == "implicit_gemm":
            elements, make = plan.once(_implicit_filters, *weight.shape)
            halves = make(elements, dtype=dtype, device=weight.device)
        else:
            layout = _MEMORY_FORMAT[str(plan["convolution_layout"])]
            halves = torch.empty(weight.shape, dtype=dtype, device=weight.device, memory_format=layout)
        factors = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device) if scales else None
        largest = torch.empty(samples, dtype=torch.int32, device=weight.device) if scales else None
        counts = (samples, weight.shape[1], weight.shape[2] * weight.shape[3])
        arguments = (weight, halves, factors, largest, *counts, _is_last(plan, weight))
        plan.launch("prepare_weight", *arguments, blocks=weight.shape[0], threads=_WEIGHT_THREADS)
        return halves, factors, largest

    def _convert(self, plan: Plan, x: torch.Tensor, dtype: torch.dtype, largest: Argument) -> torch.Tensor:
        """x in the convolution's layout and type."""
        layout = str(plan["convolution_layout"])
        converted = torch.empty(x.shape, dtype=dtype, device=x.device, memory_format=_MEMORY_FORMAT[layout])
        threads = plan.integer("input_block_size")
        samples, channels, pixels = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
        if layout != plan.problem.options["input"]:
            tile = plan.integer("input_tile")
            entry_point, sizes = "transpose_input", [samples, channels, pixels]
            blocks = samples * ceil_div(channels, tile) * ceil_div(pixels, tile)
        else:
            width = _width(plan, "input_vector_bytes")
            entry_point, sizes = "cast_input", [samples, channels * pixels]
            blocks = samples * ceil_div(channels * pixels, threads * plan.integer("input_items") * width)
        plan.launch(entry_point, x, converted, largest, *sizes, blocks=min(blocks, _MAX_GRID), threads=threads)
        return converted

    def _convolve_and_finish(
        self,
        plan: Plan,
        source: torch.Tensor,
        weight: torch.Tensor,
        conv_bias: torch.Tensor,
        bias: torch.Tensor,
        factors: torch.Tensor | None,
        constant: float,
        factor: float,
    ) -> torch.Tensor:
        """From the converted input to the output."""
        if plan["convolution"] in _GRAPH:
            epilogue = cudnn_graph.Epilogue(factors, conv_bias, bias, constant, factor)
            product = cudnn_graph.convolve(_graph(plan), source, weight, epilogue)
            if plan.problem.options["output"] == plan["convolution_layout"]:
                return product
        else:
            product = self._convolve(plan, source, weight)
        return self._finish(plan, product, conv_bias, bias, factors, constant, factor)

    def _convolve(self, plan: Plan, source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The convolution without its bias, in the configuration's layout.

        `torch._convolution` takes as arguments what `conv2d` takes from global flags, which other threads may read.
        """
        cudnn = torch.backends.cudnn
        product: torch.Tensor = torch._convolution(
            source,
            weight,
            None,
            stride=[1, 1],
            padding=[0, 0],
            dilation=[1, 1],
            transposed=False,
            output_padding=[0, 0],
            groups=1,
            benchmark=bool(plan["benchmark"]) or bool(cudnn.benchmark),
            deterministic=bool(cudnn.deterministic) or torch.are_deterministic_algorithms_enabled(),
            cudnn_enabled=bool(cudnn.enabled),
            allow_tf32=plan["convolution"] == "tf32",
        )
        return product.contiguous(memory_format=_MEMORY_FORMAT[str(plan["convolution_layout"])])

    def _finish(self, plan: Plan, product: torch.Tensor, *arguments: Argument) -> torch.Tensor:
        """Everything behind the convolution, in the output's layout."""
        options = plan.problem.options
        output = product
        if not plan["in_place"]:
            dtype = getattr(torch, plan.problem.dtype)
            layout = _MEMORY_FORMAT[options["output"]]
            output = torch.empty(product.shape, dtype=dtype, device=product.device, memory_format=layout)
        threads = plan.integer("output_block_size")
        samples, channels, pixels = product.shape[0], product.shape[1], product.shape[2] * product.shape[3]
        if plan["convolution_layout"] != plan.problem.options["output"]:
            tile = plan.integer("output_tile")
            entry_point = "transpose_output"
            blocks = samples * ceil_div(channels, tile) * ceil_div(pixels, tile)
        else:
            chunk = threads * plan.integer("output_items") * _width(plan, "output_vector_bytes")
            entry_point = "finish"
            in_planes = plan["convolution_layout"] == "nchw"
            planes, elements = (samples * channels, pixels) if in_planes else (1, product.numel())
            blocks = planes * ceil_div(elements, chunk)
        arguments = (product, output, *arguments, samples, channels, pixels)
        plan.launch(entry_point, *arguments, blocks=min(blocks, _MAX_GRID), threads=threads)
        return output

    def _implicit_gemm(
        self, plan: Plan, x: torch.Tensor, weight: torch.Tensor, filters: torch.Tensor, *arguments: Argument
    ) -> torch.Tensor:
        """The whole model in one kernel."""
        options = plan.problem.options
        samples, _, height, width = x.shape
        out_channels, _, kernel_height, kernel_width = weight.shape
        out_height, out_width = height - kernel_height + 1, width - kernel_width + 1
        output = torch.empty(
            (samples, out_channels, out_height, out_width),
            dtype=x.dtype,
            device=x.device,
            memory_format=_MEMORY_FORMAT[options["output"]],
        )
        blocks, shared = plan.once(_implicit_geometry, samples, out_channels, out_height, out_width)
        arguments = (x, filters, output, *arguments, samples, out_channels, height, width)
        plan.launch("implicit_gemm", *arguments, blocks=blocks, threads=_IMPLICIT_THREADS, shared=shared)
        return output

    def _repair(
        self, plan: Plan, x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, *arguments: Argument
    ) -> None:
        samples, in_channels, height, width = x.shape
        out_channels, _, kernel_height, kernel_width = weight.shape
        counts = (samples, in_channels, out_channels, height, width, kernel_height, kernel_width)
        blocks = min(samples * out_channels, _REPAIR_BLOCKS * plan.device.multiprocessors)
        read = (x, weight, output, *arguments, *counts, _is_last(plan, weight))
        plan.launch("repair", *read, blocks=blocks, threads=_REPAIR_THREADS)


def _rounded(_plan: Plan, number: float, dtype: torch.dtype) -> float:
    """As a tensor of the default dtype holds it."""
    return float(torch.tensor(number, dtype=dtype, device="cpu"))


def _implicit_filters(
    _plan: Plan, filters: int, channels: int, height: int, width: int
) -> tuple[int, Callable[..., torch.Tensor]]:
    """Elements of the filters as the implicit product reads them, and what makes their memory."""
    elements = ceil_div(filters, _TILE_FILTERS) * height * width * ceil_div(channels, 16) * 2 * _TILE_FILTERS * 8
    whole = filters % _TILE_FILTERS == 0 and channels % 16 == 0
    return elements, torch.empty if whole else torch.zeros  # what fills the last tile and group up counts as 0


def _implicit_geometry(
    plan: Plan, samples: int, out_channels: int, out_height: int, out_width: int
) -> tuple[tuple[int, int], int]:
    """Blocks of the implicit product, and their shared memory in bytes."""
    strips = samples * ceil_div(out_height, plan.integer("strip_rows")) * ceil_div(out_width, _TILE_COLUMNS)
    tiles = ceil_div(out_channels, _TILE_FILTERS)
    blocks = (min(strips, ceil_div(plan.device.multiprocessors, tiles)), tiles)
    return blocks, _implicit_shared_bytes(plan.problem, plan.integer("ring_rows"))


def _is_last(plan: Plan, weight: torch.Tensor) -> bool:
    """Whether filters lie channels-last."""
    return plan.once(_is_channels_last, weight.shape, weight.stride())


def _is_channels_last(_plan: Plan, shape: torch.Size, stride: tuple[int, ...]) -> bool:
    return _layout(torch.empty_strided(shape, stride, device="meta")) == "channels_last"


def _graph(plan: Plan) -> cudnn_graph.Convolution:
    """What the configuration has cuDNN's graph do."""
    axes = plan.problem.axes
    return cudnn_graph.Convolution(
        plan.device.index,
        image=(axes["batch"], axes["in_channels"], axes["height"], axes["width"]),
        filters=(axes["out_channels"], axes["in_channels"], axes["kernel_height"], axes["kernel_width"]),
        stored="float16" if plan["convolution"] in _HALF_INPUT else plan.problem.dtype,
        written=plan.problem.dtype,
        plans=str(plan["graph_list"]),
        plan=plan.integer("graph_plan"),
    )


def _width(plan: Plan, tunable: str) -> int:
    """Elements of the model's type in one access of so many bytes."""
    return max(1, plan.integer(tunable) // plan.problem.item_bytes)


def _precision(x: torch.Tensor) -> str:
    """What torch's flags let the reference's convolution of x run in: `tf32` or `strict`."""
    flags = torch.backends.cudnn
    allowed = x.is_cuda and x.dtype == torch.float32 and flags.enabled
    if allowed:
        allowed = flags.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return "tf32" if allowed else "strict"


def _layout(tensor: torch.Tensor) -> str | None:
    """The layout that torch takes a dense 4-d tensor for (`suggest_memory_format`); None where it is not dense.

    Where sizes of 1 make both possible, the strides say which was meant.
    """
    if tensor.is_contiguous(memory_format=torch.channels_last) and _strides_are_channels_last(tensor):
        return "channels_last"
    return "nchw" if tensor.is_contiguous() else None


def _strides_are_channels_last(tensor: torch.Tensor) -> bool:
    least = 0
    for axis in (1, 3, 2, 0):
        stride = tensor.stride(axis)
        if stride < least or (axis == 0 and least == tensor.stride(1)):
            return False
        least = stride * max(1, tensor.shape[axis])
    return True
