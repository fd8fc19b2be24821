"""The examples of the block for convolutions, and a model with any of torch's layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tunebench import blocks
from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.configuration import Configuration

FOLDER = Path(__file__).parent / "convolutions"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}

GEOMETRIES: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "padded": {"kernel_size": 3, "padding": 1},
    "much padding": {"kernel_size": (2, 3), "padding": (4, 5)},
    "padded rows": {"kernel_size": 3, "padding": (1, 0)},
    "padded columns": {"kernel_size": (1, 5), "padding": (0, 2)},
    "same": {"kernel_size": 5, "padding": "same"},
    "same, even": {"kernel_size": (2, 4), "padding": "same"},
    "dilated": {"kernel_size": 3, "dilation": (2, 3), "padding": (2, 3)},
    "strided": {"kernel_size": (3, 2), "stride": (2, 3), "padding": 1},
    "groups": {"kernel_size": 3, "groups": 4, "padding": 1},
    "by channel": {"kernel_size": 3, "groups": 8, "stride": 2},
    "1 x 1": {"kernel_size": 1, "bias": False},
    "dilated groups": {"kernel_size": 3, "groups": 2, "dilation": 2},
}

OTHERS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "one side": (nn.Conv1d, {"kernel_size": 3, "padding": 1}),
    "one side, same, even": (nn.Conv1d, {"kernel_size": 4, "padding": "same", "dilation": 2, "groups": 2}),
    "one side, strided": (nn.Conv1d, {"kernel_size": 3, "stride": 3, "bias": False}),
    "three sides": (nn.Conv3d, {"kernel_size": (2, 3, 4), "padding": (0, 1, 2), "stride": (1, 2, 1)}),
    "three sides, same, even": (nn.Conv3d, {"kernel_size": (2, 3, 4), "padding": "same"}),
    "three sides, dilated groups": (nn.Conv3d, {"kernel_size": (1, 2, 3), "dilation": (3, 2, 1), "groups": 4}),
    "transposed": (nn.ConvTranspose2d, {"kernel_size": 3}),
    "transposed, strided": (
        nn.ConvTranspose2d,
        {"kernel_size": (3, 4), "stride": (2, 3), "padding": (1, 2), "output_padding": (1, 0)},
    ),
    "transposed groups": (nn.ConvTranspose2d, {"kernel_size": 3, "stride": 2, "dilation": (2, 1), "groups": 4}),
    "transposed, one side": (nn.ConvTranspose1d, {"kernel_size": 5, "stride": 2, "padding": 1, "output_padding": 1}),
    "transposed, three sides": (
        nn.ConvTranspose3d,
        {"kernel_size": (2, 3, 1), "stride": (1, 2, 3), "output_padding": (0, 1, 2), "groups": 2},
    ),
}
"""Layers that are no Conv2d, and their options."""


class Model(nn.Module):
    """A convolution and what shows every place of the output to be its own."""

    def __init__(
        self, channels: int, outputs: int, options: dict[str, Any], layer: Callable[..., nn.Module] = nn.Conv2d
    ) -> None:
        super().__init__()
        self.conv = layer(channels, outputs, **options)
        assert isinstance(self.conv.weight, torch.Tensor)
        self.bias = nn.Parameter(torch.randn(1, outputs, *[1] * (self.conv.weight.dim() - 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to images."""
        return torch.tanh(self.conv(x)) * self.bias


class Tuned(blocks.Conv, Model):
    """The same by the block."""

    layer = "conv"
    function = "tanh(value) * bias"
    per_channel = ("bias",)


def example(name: str) -> type[TunedModule]:
    """The `ModelNew` of an example."""
    return import_model(str(FOLDER / f"{name}.py"))


def pair(
    name: str, dtype: torch.dtype, layout: str, device: str = "cpu", sizes: dict[str, int | float] | None = None
) -> tuple[nn.Module, TunedModule, list[Any]]:
    """An example's reference, its model with the same parameters, and inputs, images in a layout."""
    model = example(name)
    reference = model.kernel.reference(sizes or {}, str(dtype).removeprefix("torch."))
    place = torch.device(device)
    first = reference.make_model(3, place)
    tuned = reference.make_model(3, place, model)
    assert isinstance(tuned, TunedModule)
    return first, tuned, [_laid(value, layout) for value in reference.make_inputs(5, place)]


def _laid(value: Any, layout: str) -> Any:
    return value.contiguous(memory_format=LAYOUTS[layout]) if isinstance(value, torch.Tensor) else value


def error(output: torch.Tensor, reference: nn.Module, inputs: Sequence[Any]) -> float:
    """The relative norm of the error, against float64."""
    doubled = [value.double() if isinstance(value, torch.Tensor) else value for value in inputs]
    wanted = copy.deepcopy(reference).double()(*doubled)
    difference = output.double() - wanted
    return float((torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(wanted)).detach())


def passes(convolution: str, layout: str, **others: Any) -> Configuration:
    """Half precision is not for the CPU, but its passes run there: a pinned plan is not held to the space."""
    around = {"block_size": 128, "vector_bytes": 16, "tile": 32, "items": 2}
    sides = {f"{side}_{name}": value for side in ("input", "output") for name, value in around.items()}
    return Configuration({"convolution": convolution, "convolution_layout": layout, **sides, **others})
