"""Batches of images and convolutions of them: layouts in memory, geometry, precision, and the library's convolution.

Images have two or three sides. A convolution of one side is one of two, as PyTorch itself has it: rows of height 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from tunebench.tuner.settings import Setting, kind_of, value_of

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""PyTorch's convolutions."""


class Filters(NamedTuple):
    """Filters that are no layer's, with what a layer says of its own; tuples have a number for each side."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @property
    def padding_mode(self) -> str:
        """As a layer has it: functions pad with zeros."""
        return "zeros"


WINDOWS: Mapping[str, int] = {
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "transposed": 0,
    "output_padding": 0,
    "groups": 1,
}
"""What a call of a convolution says of the windows, as `torch.convolution` has it, and what it usually is."""


def filters_of(weight: torch.Tensor, windows: Mapping[str, int | tuple[int, ...]]) -> Filters | None:
    """Return filters as a layer has them; None where they have another number of sides than the windows.

    Args:
        windows: of `WINDOWS`; a number is for every side.
    """
    given: dict[str, Any] = {**WINDOWS, **windows}
    one = {"transposed": bool(given.pop("transposed")), "groups": given.pop("groups")}
    sides = weight.dim() - 2
    given = {name: (number,) * sides if isinstance(number, int) else number for name, number in given.items()}
    fits = sides > 0 and all(len(numbers) == sides for numbers in given.values())
    return Filters(weight, None, **given, **one) if fits else None


Layer = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d | Filters

SIDES = ("depth", "height", "width")
"""The axes of images that have three sides; those of two have no depth."""

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

_USUAL = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
USUAL_GEOMETRY = {
    "kernel_depth": 1,  # height and width are sizes of every problem
    **{f"{name}_{side}": size for name, size in _USUAL.items() if name != "kernel" for side in SIDES},
    "groups": 1,
    "transposed": 0,
    "sides": 2,
}
"""The axes that a convolution's problem has only where they have other values."""


class Geometry(NamedTuple):
    """The geometry of a convolution's windows; tuples are of height and width, or of depth, height and width.

    Attributes:
        padding: rows and columns of zeros in all, both sides together. Where it is odd, the last side has one more.
        transposed: the convolution is the gradient of one with this geometry by its input.
        output_padding: what the output of a transposed one is larger by.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = (0, 0)

    def output(self, *sizes: int) -> tuple[int, ...]:
        """Return the sides of the output; less than 1 where the filters are larger than the images."""
        return tuple(self._side(number, size) for number, size in enumerate(sizes))

    def _side(self, side: int, size: int) -> int:
        span = (self.kernel[side] - 1) * self.dilation[side] + 1
        if self.transposed:
            return (size - 1) * self.stride[side] - self.padding[side] + span + self.output_padding[side]
        return (size + self.padding[side] - span) // self.stride[side] + 1


def sides_of(axes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of the sides that the images of a problem with these axes have."""
    return SIDES[-axes.get("sides", 2) :]


def geometry_of_layer(layer: Layer) -> Geometry:
    """Return a layer's own geometry; its padding is zeros."""
    kernel: tuple[int, ...] = tuple(layer.weight.shape[2:])
    dilation: tuple[int, ...] = tuple(layer.dilation)
    padding: tuple[int, ...]
    if layer.padding == "same":
        padding = tuple(step * (size - 1) for step, size in zip(dilation, kernel, strict=True))
    elif isinstance(layer.padding, str):
        padding = (0,) * len(kernel)
    else:
        padding = tuple(2 * each for each in layer.padding)
    given: tuple[tuple[int, ...], ...]
    given = (kernel, tuple(layer.stride), padding, dilation, tuple(layer.output_padding))
    if len(kernel) == 1:
        given = tuple((usual, *sizes) for usual, sizes in zip(_USUAL.values(), given, strict=True))
    windows = dict(zip(_USUAL, given, strict=True))
    return Geometry(**windows, groups=layer.groups, transposed=bool(layer.transposed))


def geometry_of_axes(axes: Mapping[str, int]) -> Geometry:
    """Return the geometry of a problem with these axes."""
    sides = sides_of(axes)
    windows = {name: tuple(axes.get(f"{name}_{side}", usual) for side in sides) for name, usual in _USUAL.items()}
    return Geometry(**windows, groups=axes.get("groups", 1), transposed=bool(axes.get("transposed", 0)))


def unusual_axes(geometry: Geometry) -> dict[str, int]:
    """Return the axes of `USUAL_GEOMETRY` that have another value."""
    sides = SIDES[-len(geometry.kernel) :]
    found = {
        f"{name}_{side}": size for name in _USUAL for side, size in zip(sides, getattr(geometry, name), strict=True)
    }
    found |= {"groups": geometry.groups, "transposed": int(geometry.transposed), "sides": len(sides)}
    return {name: size for name, size in found.items() if size != USUAL_GEOMETRY.get(name, size)}


def as_images(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of one side as one of two; any other as it is."""
    return tensor.unsqueeze(2) if tensor.dim() == 3 else tensor


def memory_format(layout: str, dimensions: int) -> torch.memory_format:
    """Return torch's word for a layout of images with two or three sides."""
    return _CHANNELS_LAST[dimensions] if layout == "channels_last" else torch.contiguous_format


def layout_of(tensor: torch.Tensor) -> str | None:
    """Return the layout that torch takes dense images for (`suggest_memory_format`); None if they are not dense.

    Where sizes of 1 make both possible, the strides say which was meant.
    """
    last = _CHANNELS_LAST.get(tensor.dim())
    if last is not None and tensor.is_contiguous(memory_format=last) and _strides_are_channels_last(tensor):
        return "channels_last"
    return "nchw" if tensor.is_contiguous() else None


def _strides_are_channels_last(tensor: torch.Tensor) -> bool:
    least = 0
    for axis in (1, *reversed(range(2, tensor.dim())), 0):
        stride = tensor.stride(axis)
        if stride < least or (axis == 0 and least == tensor.stride(1)):
            return False
        least = stride * max(1, tensor.shape[axis])
    return True


def output_layout(x: torch.Tensor, layer: Layer) -> str:
    """Return the layout of the reference's convolution's output: which implementation of torch's runs decides it."""
    if "channels_last" not in (layout_of(x), layout_of(layer.weight)):
        return "nchw"
    geometry = geometry_of_layer(layer)
    if geometry.groups == 1 and set(geometry.dilation) == {1} and not geometry.transposed and x.dim() == 4:
        return "channels_last"
    # What torch's own shape propagation asks.
    backend = torch._C._select_conv_backend(x, layer.weight, layer.bias, *_settings(geometry))
    chosen = torch._C._conv_determine_backend_memory_format(x, layer.weight, backend)
    return "channels_last" if chosen in _CHANNELS_LAST.values() else "nchw"


def _settings(geometry: Geometry) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
    """Return stride, padding, dilation, whether it is transposed, output padding and groups, as torch takes them."""
    padding, larger = [each // 2 for each in geometry.padding], list(geometry.output_padding)
    return list(geometry.stride), padding, list(geometry.dilation), geometry.transposed, larger, geometry.groups


def precision_of(x: torch.Tensor, layer: Layer) -> str:
    """Return the precision that torch's flags allow the reference's convolution of x: `tf32` or `strict`.

    Of each channel by itself in NCHW torch has kernels of its own, which round nothing.
    """
    kind = x.device.type
    allowed = kind_of(kind) == "cuda" and x.dtype == torch.float32 and value_of(Setting.CUDNN, kind) != "off"
    allowed = allowed and value_of(Setting.CONVOLUTION, kind) == "tf32"
    of_channels = 1 < layer.groups == x.shape[1] and not layer.transposed
    is_own = of_channels and "channels_last" not in (layout_of(x), layout_of(layer.weight))
    return "tf32" if allowed and not is_own else "strict"


def convolve(
    x: torch.Tensor, weight: torch.Tensor, geometry: Geometry, layout: str, *, allow_tf32: bool, benchmark: bool
) -> torch.Tensor:
    """Compute torch's convolution without a bias, in that layout.

    `torch._convolution` takes as arguments what `conv2d` takes from global flags, which other threads may read.
    """
    cudnn: Any = torch.backends.cudnn
    # cuDNN's quickest algorithms for transposed ones sum in any order, which no other kernel here does.
    is_ordered = geometry.transposed or bool(cudnn.deterministic) or torch.are_deterministic_algorithms_enabled()
    if any(each % 2 for each in geometry.padding):
        behind = [each % 2 for each in reversed(geometry.padding)]
        x = torch.nn.functional.pad(x, [zeros for each in behind for zeros in (0, each)])
    product: torch.Tensor = torch._convolution(
        x,
        weight,
        None,
        *_settings(geometry),
        benchmark=benchmark or bool(cudnn.benchmark),
        deterministic=is_ordered,
        cudnn_enabled=bool(cudnn.enabled),
        allow_tf32=allow_tf32,
    )
    return product.contiguous(memory_format=memory_format(layout, x.dim()))
