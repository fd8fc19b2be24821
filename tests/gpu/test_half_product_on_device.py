"""The fused product of half types against float64: sizes, tails, addresses, epilogues, and captured graphs."""

import copy
import random
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from parts_contract import pin, run
from torch import nn

from tunebench import blocks
from tunebench.kernels.gemm_scale_bn.model import ModelNew as ScaleBn
from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew as Sigmoid
from tunebench.tuner.configuration import Value

pytestmark = pytest.mark.gpu

BOUND = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""Twice what rounding a result once may change of it."""
SIZES = [(1, 8, 32), (2, 16, 64), (63, 8, 288), (129, 72, 288), (300, 1000, 544), (1024, 512, 1024), (77, 8192, 32),
         (513, 136, 1056), (2100, 264, 3072), (20000, 64, 96), (5, 4096, 20000)]  # fmt: skip
"""Rows, depth, features: one of all, tails of tiles, of the copy engine's boxes and of clusters, many tiles."""
GEOMETRIES: Mapping[str, Mapping[str, Value]] = {
    "wide": {"product_columns": 256, "product_cluster": 2, "product_stages": 4, "product_band": 8},
    "wide alone": {"product_columns": 256, "product_cluster": 1, "product_stages": 3, "product_band": 4},
    "narrow": {"product_columns": 128, "product_cluster": 2, "product_stages": 6, "product_band": 16},
    "narrow alone": {"product_columns": 128, "product_cluster": 1, "product_stages": 4, "product_band": 1},
}


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the product of halves needs Hopper's warpgroup products")


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape))).to(dtype)


def sigmoid(depth: int, features: int, dtype: torch.dtype) -> Any:
    torch.manual_seed(depth + features)
    return Sigmoid(depth, features, 2.0).cuda().to(dtype)


def scale_bn(depth: int, features: int, dtype: torch.dtype) -> Any:
    torch.manual_seed(depth + features)
    model = ScaleBn(depth, features, (features,)).cuda()
    with torch.no_grad():
        for one in (model.bn.weight, model.bn.running_var):
            one.uniform_(0.5, 2.0)
        model.bn.bias.normal_()
        model.bn.running_mean.normal_()
    return model.to(dtype).eval()


@torch.no_grad()
def exact(model: Any, x: torch.Tensor) -> torch.Tensor:
    weight, bias = model.gemm.weight.double(), model.gemm.bias
    product = x.double() @ weight.T + (0.0 if bias is None else bias.double())
    if isinstance(model, Sigmoid):
        return product + 2.0 * torch.sigmoid(product)
    bn = model.bn
    assert bn.running_mean is not None and bn.running_var is not None
    centred = product * model.scale.double() - bn.running_mean.double()
    return centred / (bn.running_var.double() + bn.eps).sqrt() * bn.weight.double() + bn.bias.double()


def assert_right(model: Any, x: torch.Tensor, found: torch.Tensor) -> None:
    wanted, bound = exact(model, x), BOUND[x.dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=bound, atol=bound * float(wanted.std(correction=0) + 0.1))


def fused(model: Any, x: torch.Tensor, **values: Value) -> None:
    pin(model, x, {"product": "fused", **values})


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("make", [sigmoid, scale_bn])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_sizes(geometry: str, make: Any, dtype: torch.dtype) -> None:
    for rows, depth, features in SIZES:
        model, x = make(depth, features, dtype), drawn(rows, depth, dtype=dtype)
        fused(model, x, **GEOMETRIES[geometry])
        found = run(model, x)
        assert_right(model, x, found)
        assert torch.equal(found, run(model, x))


class SwiGLU(nn.Module):
    """Two layers of one input, joined."""

    def __init__(self, depth: int, features: int, *, has_bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(depth, features, bias=has_bias)
        self.up_proj = nn.Linear(depth, features, bias=not has_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)


class TunedSwiGLU(blocks.Linear, SwiGLU):
    layer = "gate_proj"
    other_layers: ClassVar = {"up": "up_proj"}
    function = "silu(value) * up"


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("has_bias", [False, True], ids=["its bias", "the other's"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_two_layers_in_one_product(geometry: str, dtype: torch.dtype, *, has_bias: bool) -> None:
    for rows, depth, features in SIZES:
        torch.manual_seed(depth + features)
        model = TunedSwiGLU(depth, features, has_bias=has_bias).cuda().to(dtype)
        x = drawn(rows, depth, dtype=dtype)
        fused(model, x, **GEOMETRIES[geometry])
        found, wanted = run(model, x), run(copy.deepcopy(model).double().reference_forward, x.double())
        bound = BOUND[dtype]
        torch.testing.assert_close(
            found.double(), wanted, rtol=bound, atol=bound * float(wanted.std(correction=0) + 0.1)
        )
        assert torch.equal(found, run(model, x))


@pytest.mark.parametrize("normalisation", ["per_element", "reciprocal", "folded"])
@pytest.mark.parametrize("frozen", [False, True], ids=["eval", "frozen"])
def test_every_way_to_normalise(normalisation: str, *, frozen: bool) -> None:
    model, x = scale_bn(512, 416, torch.bfloat16), drawn(333, 512, dtype=torch.bfloat16)
    if frozen:
        model.freeze()
    fused(model, x, normalisation=normalisation)
    for _ in range(2):
        assert_right(model, x, run(model, x))


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_operands_anywhere(dtype: torch.dtype) -> None:
    """Operands and vectors that do not begin at 16 bytes, or whose rows do not lie one after the other."""
    model = sigmoid(264, 320, dtype)
    memory = drawn(1 + 200 * 264, dtype=dtype)
    weight, bias = drawn(3 + 320 * 264, dtype=dtype)[3:].view(320, 264), drawn(321, dtype=dtype)[1:]
    cases = [
        (memory[1:].view(200, 264), weight / 16, bias),
        (drawn(264, 200, dtype=dtype).T, drawn(264, 320, dtype=dtype).T / 16, None),
        (drawn(200, 528, dtype=dtype)[:, ::2], weight / 16, bias[:320]),
    ]
    for x, of_layer, added in cases:
        model.gemm.weight = torch.nn.Parameter(of_layer)
        model.gemm.bias = None if added is None else torch.nn.Parameter(added)
        fused(model, x)
        assert_right(model, x, run(model, x))


def test_what_is_not_finite_is_where_it_belongs() -> None:
    model, x = sigmoid(512, 320, torch.float16), drawn(300, 512, dtype=torch.float16)
    x[7, 9], x[130, 0] = torch.nan, torch.inf
    fused(model, x)
    found = run(model, x)
    assert found[7].isnan().all()
    assert not found[130].isfinite().any()
    spoilt = torch.tensor([7, 130], device="cuda")
    kept = torch.ones(300, dtype=torch.bool, device="cuda").index_fill(0, spoilt, value=False)
    assert_right(model, x[kept], found[kept])


@pytest.mark.parametrize("early", [False, True], ids=["waits", "early"])
def test_a_captured_graph_follows_its_operands(*, early: bool) -> None:
    model, x = scale_bn(1024, 1024, torch.bfloat16), drawn(700, 1024, dtype=torch.bfloat16)
    fused(model, x, normalisation="folded", early_launches=early)
    run(model, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run(model, x)
    for factor in (0.5, -2.0):
        with torch.no_grad():
            x.mul_(factor)
            model.gemm.weight.mul_(factor)
        graph.replay()
        assert_right(model, x, output)


def test_calls_one_after_the_other_with_other_addresses() -> None:
    model = sigmoid(512, 1024, torch.bfloat16)
    inputs = [drawn(rows, 512, dtype=torch.bfloat16) for rows in random.Random(3).choices(range(1, 600), k=24)]
    fused(model, inputs[0])
    for x in inputs:
        fused(model, x)
        assert_right(model, x, run(model, x))
