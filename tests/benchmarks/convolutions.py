"""Convolutions of networks (`convolutions.toml`), and six with more behind them, as problems in KernelBench's form."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.modules import ModuleText

_FIELDS = ("in_channels", "out_channels", "kernel", "stride", "side", "groups")

_SIX = (
    (32, 256, 14, 256),
    (64, 128, 28, 128),
    (64, 64, 56, 64),
    (2, 320, 64, 320),
    (16, 192, 35, 64),
    (1, 512, 32, 512),
)
"""Samples, channels, side and filters of windows of 3 by 3 with a minimum, a bias and a scale behind them."""


def convolutions() -> Iterator[ModuleText]:
    """Yield them, the six first."""
    for samples, channels, side, filters in _SIX:
        yield ModuleText(
            name=f"{samples}x{channels}x{side}_to_{filters}",
            area="six",
            title="A convolution, the minimum with a constant, a bias and a scale",
            x={"samples": samples, "in_channels": channels, "height": side, "width": side},
            numbers={"filters": filters, "constant": 0.5, "scale": 2.0},
            layers="conv = nn.Conv2d(in_channels, filters, 3, padding=1)\n"
            "bias = nn.Parameter(torch.randn(filters, 1, 1))",
            forward="(torch.clamp_max(self.conv(x), self.constant) + self.bias) * self.scale",
        )
    for network, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items():
        for row in table["rows"]:
            yield _layer(network, table["samples"], dict(zip(_FIELDS, [*row, 1], strict=False)))


def _layer(network: str, samples: int, sizes: dict[str, int]) -> ModuleText:
    """Return a layer with its activation; a batch normalisation's scale and shift are in the layer's own."""
    name = "_".join(str(size) for size in sizes.values())
    return ModuleText(
        name=f"{network}_{name}",
        area=network,
        title="A convolution and an activation",
        x={"samples": samples, "in_channels": sizes["in_channels"], "height": sizes["side"], "width": sizes["side"]},
        numbers={key: sizes[key] for key in ("out_channels", "kernel", "stride", "groups")},
        layers="conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups)",
        forward="torch.relu(self.conv(x))",
    )
