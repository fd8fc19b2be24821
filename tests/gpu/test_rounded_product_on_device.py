"""The fp32 product of operands rounded to halves in rows: sizes, layouts, magnitudes, and what is not finite."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from parts_contract import error, pin, product_model, run
from torch import nn

from tunebench import blocks
from tunebench.tuner.configuration import Value

pytestmark = pytest.mark.gpu

ROWS: Mapping[str, Value] = {"product": "fused", "weight_parts": "halves", "sum_stages": 0}
SHAPES: Mapping[str, Mapping[str, Value]] = {
    "wide": {"product_columns": 256, "product_cluster": 2, "product_stages": 4},
    "wide alone": {"product_columns": 256, "product_cluster": 1, "product_stages": 3},
    "narrow": {"product_columns": 128, "product_cluster": 2, "product_stages": 6},
    "narrow alone": {"product_columns": 128, "product_cluster": 1, "product_stages": 4},
}
BOUND = 1e-3


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the product needs Hopper's warpgroup products")


def matrices(rows: int, features: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(rows, depth, device="cuda", generator=generator)
    return x, torch.randn(features, depth, device="cuda", generator=generator)


@pytest.mark.parametrize(
    "size", [(1, 32, 1), (3, 160, 33), (130, 256, 100), (257, 544, 1001), (700, 992, 4096)], ids=str
)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("frozen", [False, True])
def test_sizes(size: tuple[int, int, int], shape: str, *, frozen: bool) -> None:
    x, weight = matrices(*size)
    model = product_model(x, weight, {**ROWS, **SHAPES[shape]}, frozen=frozen)
    found = run(model, x)
    assert error(found, x, weight) < BOUND
    assert torch.equal(found, run(model, x))


@pytest.mark.parametrize("w_size", [1e-30, 1.0, 1e20])
@pytest.mark.parametrize("x_size", [1e-20, 1.0, 1e15])
def test_magnitudes(x_size: float, w_size: float) -> None:
    x, weight = matrices(200, 320, 512)
    x, weight = x * x_size, weight * w_size
    x *= torch.logspace(-6, 0, 200, device="cuda")[:, None]
    assert error(run(product_model(x, weight, ROWS), x), x, weight) < BOUND


def test_rows_that_halves_cannot_hold_are_computed_again() -> None:
    x, weight = matrices(300, 320, 600)
    x[7, 5], x[8, 6], weight[33, 1], weight[44] = torch.inf, torch.nan, -torch.inf, 0.0
    x[9, 0], weight[45, 0] = 2.0**40, 2.0**50  # beside elements that vanish
    found, strict = run(product_model(x, weight, ROWS), x), x @ weight.T
    size = (x.abs() @ weight.abs().T).clamp_min(1e-30)
    torch.testing.assert_close(found / size, strict / size, rtol=0.0, atol=BOUND, equal_nan=True)


class Two(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x @ y.T + bias) * z


class TwoTurned(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x @ y + bias) * z


class InRows(blocks.Linear, Two):
    layer = "x @ y.T"
    function = "gelu(value + bias) * z"
    per_feature = ("bias",)


class InColumns(blocks.Linear, TwoTurned):
    layer = "x @ y"
    function = "gelu(value + bias) * z"
    per_feature = ("bias",)


@pytest.mark.parametrize("kind", [InRows, InColumns])
@pytest.mark.parametrize("size", [(257, 544, 200), (1000, 96, 768), (40, 2048, 48)], ids=str)
def test_two_inputs_with_a_function_behind(kind: type[nn.Module], size: tuple[int, int, int]) -> None:
    x, weight = matrices(*size)
    bias, z = torch.randn(size[1], device="cuda"), torch.randn(size[0], size[1], device="cuda")
    model = kind().eval()
    other = weight if kind is InRows else weight.T.contiguous()
    pin(model, x, ROWS, other, bias, z)  # type: ignore[arg-type]
    wanted = nn.functional.gelu(x.double() @ weight.double().T + bias) * z
    bound = BOUND * 1.2 * (x.abs() @ weight.abs().T) * z.abs() + 1e-5  # GELU is steeper than one in places
    assert ((run(model, x, other, bias, z) - wanted).abs() <= bound).all()
