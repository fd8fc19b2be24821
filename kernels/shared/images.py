"""Batches of images and convolutions of them: layouts in memory, geometry, precision, and the library's convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from tunebench.tuner.settings import Setting, kind_of, value_of

MEMORY_FORMAT = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
"""torch's word for each layout."""

USUAL_GEOMETRY = {
    "stride_height": 1,
    "stride_width": 1,
    "padding_height": 0,
    "padding_width": 0,
    "dilation_height": 1,
    "dilation_width": 1,
    "groups": 1,
}
"""The axes that a convolution's problem has only where they have other values."""


class Geometry(NamedTuple):
    """The geometry of a convolution's windows; pairs are of height and width.

    Attributes:
        padding: rows and columns of zeros in all, both sides together. Where it is odd, the last side has one more.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def output(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the output; less than 1 where the filters are larger than the images."""
        return self._windows(0, height), self._windows(1, width)

    def _windows(self, side: int, size: int) -> int:
        span = (self.kernel[side] - 1) * self.dilation[side] + 1
        return (size + self.padding[side] - span) // self.stride[side] + 1


def geometry_of_layer(layer: nn.Conv2d) -> Geometry:
    """Return a layer's own geometry; its padding is zeros."""
    kernel, dilation = tuple(layer.weight.shape[2:]), tuple(layer.dilation)
    if layer.padding == "same":
        above, before = (dilation[side] * (kernel[side] - 1) for side in (0, 1))
    elif isinstance(layer.padding, str):
        above = before = 0
    else:
        above, before = (2 * each for each in layer.padding)
    return Geometry(kernel, tuple(layer.stride), (above, before), dilation, layer.groups)  # type: ignore[arg-type]


def geometry_of_axes(axes: Mapping[str, int]) -> Geometry:
    """Return the geometry of a problem with these axes."""

    def pair(name: str) -> tuple[int, int]:
        height, width = f"{name}_height", f"{name}_width"
        return axes.get(height, USUAL_GEOMETRY.get(height, 0)), axes.get(width, USUAL_GEOMETRY.get(width, 0))

    return Geometry(pair("kernel"), pair("stride"), pair("padding"), pair("dilation"), axes.get("groups", 1))


def unusual_axes(geometry: Geometry) -> dict[str, int]:
    """Return the axes of `USUAL_GEOMETRY` that have another value."""
    pairs = (geometry.stride, geometry.padding, geometry.dilation, (geometry.groups,))
    found = dict(zip(USUAL_GEOMETRY, (size for sizes in pairs for size in sizes), strict=True))
    return {name: size for name, size in found.items() if size != USUAL_GEOMETRY[name]}


def layout_of(tensor: torch.Tensor) -> str | None:
    """Return the layout that torch takes a dense 4-d tensor for (`suggest_memory_format`); None if it is not dense.

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


def output_layout(x: torch.Tensor, layer: nn.Conv2d) -> str:
    """Return the layout of the reference's convolution's output: which implementation of torch's runs decides it."""
    if "channels_last" not in (layout_of(x), layout_of(layer.weight)):
        return "nchw"
    geometry = geometry_of_layer(layer)
    if geometry.groups == 1 and geometry.dilation == (1, 1):
        return "channels_last"
    padding = [each // 2 for each in geometry.padding]
    settings = (list(geometry.stride), padding, list(geometry.dilation), False, [0, 0], geometry.groups)
    # What torch's own shape propagation asks.
    backend = torch._C._select_conv_backend(x, layer.weight, layer.bias, *settings)
    chosen = torch._C._conv_determine_backend_memory_format(x, layer.weight, backend)
    return "channels_last" if chosen == torch.channels_last else "nchw"


def precision_of(x: torch.Tensor) -> str:
    """Return the precision that torch's flags allow the reference's convolution of x: `tf32` or `strict`."""
    kind = x.device.type
    allowed = kind_of(kind) == "cuda" and x.dtype == torch.float32 and value_of(Setting.CUDNN, kind) != "off"
    allowed = allowed and value_of(Setting.CONVOLUTION, kind) == "tf32"
    return "tf32" if allowed else "strict"


def convolve(
    x: torch.Tensor, weight: torch.Tensor, geometry: Geometry, layout: str, *, allow_tf32: bool, benchmark: bool
) -> torch.Tensor:
    """Compute torch's convolution without a bias, in that layout.

    `torch._convolution` takes as arguments what `conv2d` takes from global flags, which other threads may read.
    """
    cudnn: Any = torch.backends.cudnn
    below, behind = (each % 2 for each in geometry.padding)
    if below or behind:
        x = torch.nn.functional.pad(x, (0, behind, 0, below))
    product: torch.Tensor = torch._convolution(
        x,
        weight,
        None,
        stride=list(geometry.stride),
        padding=[each // 2 for each in geometry.padding],
        dilation=list(geometry.dilation),
        transposed=False,
        output_padding=[0, 0],
        groups=geometry.groups,
        benchmark=benchmark or bool(cudnn.benchmark),
        deterministic=bool(cudnn.deterministic) or torch.are_deterministic_algorithms_enabled(),
        cudnn_enabled=bool(cudnn.enabled),
        allow_tf32=allow_tf32,
    )
    return product.contiguous(memory_format=MEMORY_FORMAT[layout])
