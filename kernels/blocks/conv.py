"""Conv: a convolution with a device function behind it, in few passes or in one kernel.

    class ModelNew(blocks.Conv, Model):
        layer = "conv"
        function = "relu(value) + bias"
        per_channel = {"bias": "bias"}

`value` is what the layer at the path `layer`, which the first argument of `forward` goes into, makes: its bias is
added. It is one of torch's convolutions, of one, two or three sides, transposed or not: any kernel size, stride,
padding with zeros, dilation, groups and output padding are served. `layer` may also be filters without one, an argument
of `forward` or a parameter; what `windows` leaves out is as `torch.nn.functional.conv2d` has it:

        layer = "weight"
        windows = {"stride": 2, "padding": (1, 1), "transposed": False}

The convolution is a library's, between passes of our own, or a kernel does it all. The library is torch's, cuDNN on a
GPU. Kernels of our own for Hopper are the product of windows that the copy engine lays out (conv_im2col.cuh), of few
channels in all or enough in a group, behind a pass that lays images out channels-last and in halves, and one without
such a pass (conv_gemm.cuh), for windows that go from pixel to pixel. The latter is for one or two sides, and not for
transposed convolutions. A kernel for few channels a group (conv_direct.cuh), as where each channel is by itself, rounds
nothing; of three sides it is for several filters a group, and not for transposed convolutions either.

Layout: as the reference's. The output is channels-last where torch's convolution makes it so: where the images or the
filters are; `model.to(memory_format=torch.channels_last)` therefore asks for it. A tensor with an element for each of
the output's, such as a residual, has to lie as the output does; the reference handles others.

Precision: as torch's flags allow at each call. Where `torch.backends.cudnn.conv.fp32_precision` is `tf32` (also set
by `torch.backends.cudnn.allow_tf32`, and the default), the convolution may run in TF32 or in half precision with
single-precision sums, which keeps TF32's mantissa and, by torch, rounds the sums to it as well. Half precision lacks
TF32's range: x is scaled by 64 and each channel's weight by a power of two. A sample whose largest absolute value is
not 0 and not within 1/64 and 1000, and a channel whose weight has no such scale, are found on the device, without
waiting for it, and computed again in single precision by a plain kernel: right, and much slower. Within that range a
sample's tiny elements keep an absolute error of at most 2⁻²⁵ of the sample's largest or of 1/64, whichever is more.
A model in float16 or bfloat16 is convolved in that type, as the reference is, with single-precision sums. Where
TF32 is not permitted, `im2col_parts` and `implicit_parts` still multiply halves, two for each operand: together they
have single precision's mantissa but for two bits.

Nothing is kept between calls: the weight is converted in every forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import torch

from tunebench.kernels.blocks import conv_launches as launches
from tunebench.kernels.blocks.block import (
    Block,
    Design,
    Kind,
    attribute_of,
    axes_of,
    fast_math_line,
    fast_math_tunables,
)
from tunebench.kernels.blocks.conv_im2col import is_im2col
from tunebench.kernels.blocks.conv_launches import Behind
from tunebench.kernels.blocks.conv_source import source_of
from tunebench.kernels.blocks.conv_space import is_implicit, space_of, work
from tunebench.kernels.shared.images import (
    LAYERS,
    SIDES,
    USUAL_GEOMETRY,
    WINDOWS,
    Geometry,
    Layer,
    as_images,
    convolve,
    filters_of,
    geometry_of_axes,
    geometry_of_layer,
    layout_of,
    output_layout,
    precision_of,
    unusual_axes,
)
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Problem

_AXES = {Kind.PER_CHANNEL: "out_channels", Kind.PER_TENSOR: "ones"}
_IMAGES = ("batch", "in_channels", "height", "width")
_OUTPUT = ("batch", "out_channels", "out_height", "out_width")
_FILTERS = ("filters", "filter_channels", "kernel_height", "kernel_width")
_LAYOUTS = ("nchw", "channels_last")

_ORDER = (Kind.PER_CHANNEL, Kind.ELEMENT, Kind.PER_TENSOR, Kind.SCALAR)
"""The order of operands among an entry point's parameters."""


class Conv(Block):
    """A convolution with a function of each of its elements; attributes as in `Block`, and the path of the layer."""

    layer: ClassVar[str]
    windows: ClassVar[Mapping[str, int | tuple[int, ...]]] = {}
    filters_at: ClassVar[int] = -1
    """The place of the filters among the arguments of `forward`; -1 of those that the module has."""
    output_layout: ClassVar[str] = ""
    """The layout of the output: nchw, unless the filters are channels-last; nothing for torch's."""
    is_plain: ClassVar[bool] = False
    """Whether nothing is behind the layer."""

    kinds_of_operands = (Kind.SCALAR, Kind.PER_CHANNEL, Kind.PER_TENSOR)

    @classmethod
    def design(cls) -> Design:
        """Design passes around a library's convolution, and the kernel that does without."""
        if not isinstance(getattr(cls, "layer", None), str):
            raise cls.wrong("layer", 'give the path of a convolution in the module, such as "conv"')
        if cls.output_layout not in ("", "nchw"):
            raise cls.wrong("output_layout", f'there is no {cls.output_layout!r}: give "nchw", or nothing for torch\'s')
        text = cls.text("function")
        found = cls.operands({"function": text}, ("value",))
        cls.is_plain = text.strip() == "value"
        cls.used = tuple(sorted(found, key=lambda one: _ORDER.index(one.kind)))
        inputs = cls._input_names()
        for name, numbers in cls.windows.items():
            if name not in WINDOWS:
                raise cls.wrong("windows", f"there is no '{name}': the legal names are {', '.join(WINDOWS)}")
            if not all(isinstance(one, int) for one in (numbers if isinstance(numbers, tuple) else [numbers])):
                raise cls.wrong("windows", f"'{name}' is {numbers!r}: give a number, or a tuple of one for each side")
        cls.filters_at = inputs.index(cls.layer) if cls.layer in inputs[1:] else -1
        filters = {cls.layer: _FILTERS} if cls.filters_at > 0 else {}
        elements = {one.path: _OUTPUT for one in cls.used if one.kind is Kind.ELEMENT and one.argument}
        return Design(
            source_of(f"{cls.__name__}.function", text, cls.used, fast_math_line([text])),
            space_of(*fast_math_tunables([text])),
            {inputs[0]: _IMAGES, **filters, **elements, **axes_of(cls.used, _AXES)},
            partial(work, element_tensors=len(elements)),
            compiled_axes=("in_channels", "kernel_height", "kernel_width"),
            usual_axes=USUAL_GEOMETRY,
            compiled_options=dict.fromkeys(("input", "output"), _LAYOUTS),
            bulk_copies=("implicit_gemm", "im2col_product"),
        )

    def problem(self, *inputs: Any, **named: Any) -> Problem | None:
        """Accept batches that are dense in NCHW or channels-last, and no smaller than the filters."""
        layer = self._layer(inputs)
        if layer is None or layer.padding_mode != "zeros" or min(layer.stride) < 1:
            return self.unserved(f"'{self.layer}' is no convolution in steps of 1 or more that pads with zeros")
        given, dimensions = inputs, layer.weight.dim()
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        lies = dimensions > 3 or all(one.is_contiguous() for one in tensors)  # of one side no other layout is dense
        if not lies or any(one.dim() != dimensions for one in tensors[:1]):
            return self.unserved("an input is not contiguous, or has another number of dimensions than the filters")
        if dimensions != 4:
            inputs = tuple(_of_two_sides(value, dimensions) for value in given)
        found = super().problem(*inputs, **named)
        if found is None:
            return None
        x, geometry = as_images(given[0]), geometry_of_layer(layer)
        sides = dict(zip(SIDES[-len(geometry.kernel) :], x.shape[2:], strict=True))
        filters, channels = layer.weight.shape[0], layer.weight.shape[1] * geometry.groups
        if geometry.transposed:
            filters, channels = channels, filters
        output = (x.shape[0], filters, *geometry.output(*sides.values()))
        if x.shape[1] != channels or min(output) < 1:
            few = f"the images have {x.shape[1]} channels, not the filters'"
            return self.unserved(few if x.shape[1] != channels else "the filters are larger than the images")
        own, layout = ("nchw", "nchw") if dimensions == 3 else (str(layout_of(x)), self._layout_of_output(x, layer))
        if reason := self._misfit(given, output, layout):
            return self.unserved(reason)
        height, width = geometry.kernel[-2:]
        axes = {"batch": x.shape[0], "in_channels": channels, **sides, "out_channels": filters}
        axes |= {"kernel_height": height, "kernel_width": width, **unusual_axes(geometry)}
        options = {**found.options, "input": own, "output": layout, "precision": precision_of(x, layer)}
        return replace(found, axes=axes, options=options)

    def _layer(self, inputs: Sequence[Any]) -> Layer | None:
        """Return the layer, or the filters as one; None where there is none of a convolution of these inputs."""
        is_given = 0 <= self.filters_at < len(inputs)
        found = inputs[self.filters_at] if is_given else attribute_of(self, "layer", self.layer)
        if isinstance(found, torch.Tensor):
            return filters_of(found, self.windows)
        return found if isinstance(found, LAYERS) else None

    def _layout_of_output(self, x: torch.Tensor, layer: Layer) -> str:
        """Return the layout of the reference's output, whose images lie otherwise where the class says its layout."""
        is_told = self.output_layout and layout_of(layer.weight) != "channels_last"
        return self.output_layout if is_told else output_layout(x, layer)

    def _misfit(self, inputs: tuple[Any, ...], output: tuple[int, ...], layout: str) -> str:
        """Return which operand is another than the kernel reads; empty where none is."""
        for kind, (_, path), value in zip(self.kinds, self.places, self.values(inputs), strict=True):
            if kind == "per_channel" and not _is_along_channels(value, output[1], sides := inputs[0].dim() - 2):
                wanted = (output[1], *[1] * sides)
                return f"'{path}' has the shape {tuple(value.shape)}, not {wanted}"
            if kind == "forward" and (tuple(as_images(value).shape) != output or layout_of(value) != layout):
                return f"'{path}' does not lie in memory as the output does"
        return ""

    def accepts_layout(self, name: str, tensor: torch.Tensor) -> bool:
        """Accept channels-last images and filters."""
        return name in (f"{self.layer}.weight", self.layer, *self._input_names()) and layout_of(tensor) is not None

    def tuned_forward(self, plan: Plan, *inputs: Any) -> torch.Tensor:
        """Map (batch, in_channels, sides ...) to (batch, out_channels, sides' ...)."""
        x, values = inputs[0], self.values(inputs)
        layer = attrgetter(self.layer)(self) if self.filters_at < 0 else inputs[self.filters_at]
        weight, bias = (layer, None) if isinstance(layer, torch.Tensor) else (layer.weight, layer.bias)
        if x.dim() == 3:
            output = self._forward(plan, as_images(x), as_images(weight), bias, values)
            # To autograd what a kernel makes is no view of another tensor.
            one_side: torch.Tensor = torch.ops.aten._unsafe_view(output, (*output.shape[:2], output.shape[3]))
            return one_side
        return self._forward(plan, x, weight, bias, values)

    def _forward(
        self,
        plan: Plan,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        values: Sequence[Any],
    ) -> torch.Tensor:
        """Compute the output from images of two or three sides."""
        convolution, count = plan["convolution"], len(values) - self.kinds.count("scalars")
        tensors, numbers = tuple(map(as_images, values[:count])), tuple(values[count:])
        if convolution == "direct":
            return launches.direct(plan, x, weight, Behind(bias, tensors, None, numbers))
        operands = launches.prepared(plan, x, weight)
        behind = Behind(bias, tensors, operands.factors, numbers)
        if is_im2col(str(convolution)):
            output = launches.im2col(plan, operands, behind)
        elif is_implicit(str(convolution)):
            output = launches.implicit_gemm(plan, operands, behind)
        else:
            output = self._convolve_and_finish(plan, operands, behind)
        if operands.largest is not None:
            launches.repair(plan, x, weight, output, operands.largest, behind)
        return output

    def _convolve_and_finish(self, plan: Plan, operands: launches.Operands, behind: Behind) -> torch.Tensor:
        """Compute the output by the library's convolution."""
        layout = str(plan["convolution_layout"])
        settings = {"allow_tf32": plan["convolution"] == "tf32", "benchmark": bool(plan["benchmark"])}
        product = convolve(operands.x, operands.weight, plan.once(_geometry), layout, **settings)
        if self.is_plain and behind.bias is None and behind.factors is None and plan["in_place"]:
            return product  # the plan has it in the output's layout
        return launches.finish(plan, product, behind)


def _geometry(plan: Plan) -> Geometry:
    return geometry_of_axes(plan.problem.axes)


def _is_along_channels(tensor: torch.Tensor, channels: int, sides: int) -> bool:
    """Return whether a tensor has a value for each channel, and broadcasts so or is a vector."""
    ones = (1,) * sides
    return tuple(tensor.shape) in {(channels,), (channels, *ones), (1, channels, *ones)}


def _of_two_sides(value: Any, dimensions: int) -> Any:
    """Return images that have another number of sides as their sizes are read: with two."""
    if not isinstance(value, torch.Tensor) or value.dim() != dimensions:
        return value
    return as_images(value) if dimensions == 3 or layout_of(value) is None else value.flatten(3)
