"""Our products of half types, of many rows and of few, against float64: sizes, addresses, epilogues and graphs."""

import copy
import random
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from typing import Any, ClassVar, TypeAlias

import pytest
import torch
from parts_contract import pin, run
from torch import nn

from tunebench import blocks
from tunebench.kernels.gemm_scale_bn.model import ModelNew as ScaleBn
from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew as Sigmoid
from tunebench.tuner.configuration import Value

pytestmark = pytest.mark.gpu

Pin: TypeAlias = Callable[..., None]
"""Has a model run for an input under the product's configuration that has these values."""
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

FEW = [(1, 8, 8), (1, 4096, 4096), (3, 72, 136), (8, 1000, 200), (17, 64, 4096), (64, 4096, 1024), (64, 8200, 72),
       (100, 520, 1304), (128, 2048, 2056)]  # fmt: skip
STREAMS: Mapping[str, Mapping[str, Value]] = {
    "alone": {"stream_features": 64, "stream_split": 1, "stream_stages": 4},
    "in two": {"stream_features": 128, "stream_split": 2, "stream_stages": 6},
    "in four": {"stream_features": 64, "stream_split": 4, "stream_stages": 6},
    "in eight": {"stream_features": 128, "stream_split": 8, "stream_stages": 4},
    "wide": {"stream_features": 256, "stream_split": 4, "stream_stages": 4},
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


class Residual(nn.Module):
    def __init__(self, depth: int, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(depth, features)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + torch.sigmoid(residual)


class TunedResidual(blocks.Linear, Residual):
    layer = "linear"
    function = "value + 1 / (1 + exp(-residual))"


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_elements_beside_the_product_anywhere(geometry: str, dtype: torch.dtype) -> None:
    for (rows, depth, features), off in zip(SIZES, cycle((0, 1, 0, 3, 0, 8)), strict=False):
        torch.manual_seed(depth + features)
        model, x = TunedResidual(depth, features).cuda().to(dtype), drawn(rows, depth, dtype=dtype)
        residual = drawn(rows * features + off, dtype=dtype)[off:].view(rows, features)
        pin(model, x, {"product": "fused", **GEOMETRIES[geometry]}, residual)
        found = run(model, x, residual)
        wanted = run(copy.deepcopy(model).double().reference_forward, x.double(), residual.double())
        bound = BOUND[dtype]
        torch.testing.assert_close(found.double(), wanted, rtol=bound, atol=bound)


class Bent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(264, 544)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = self.linear(x)
        bent = torch.tanh(value) + torch.sigmoid(value) + nn.functional.silu(value)
        return bent + nn.functional.mish(value) + nn.functional.gelu(value, approximate="tanh")


class TunedBent(blocks.Linear, Bent):
    layer = "linear"
    function = "tanh(value) + sigmoid(value) + silu(value) + mish(value) + gelu_tanh(value)"


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("has", [False, True], ids=["by exponentials", "by the device's tanh"])
def test_functions_by_a_fast_tanh(dtype: torch.dtype, *, has: bool) -> None:
    torch.manual_seed(7)
    model, x = TunedBent().cuda().to(dtype), drawn(513, 264, dtype=dtype)
    with torch.no_grad():
        model.linear.weight *= 16  # outputs from -30 to 30
    x[3, 5], x[7, 11] = float("nan"), float("inf")
    fused(model, x, fast_math=True, fast_tanh=has, **GEOMETRIES["wide"])
    found, wanted = run(model, x), run(copy.deepcopy(model).double().reference_forward, x.double())
    bound = BOUND[dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=2 * bound, atol=4 * bound, equal_nan=True)
    assert torch.equal(found.nan_to_num(), run(model, x).nan_to_num())


def stream(model: Any, x: torch.Tensor, **values: Value) -> None:
    rows = max(16, 8 * int(values.get("stream_split", 1)), 1 << (x.shape[0] - 1).bit_length())
    pin(model, x, {"product": "stream", "stream_rows": rows, **values})


each_product = pytest.mark.parametrize(("product", "rows"), [(fused, 200), (stream, 100)], ids=["fused", "stream"])


@pytest.mark.parametrize(
    ("make", "dtype"), [(sigmoid, torch.float16), (scale_bn, torch.bfloat16)], ids=["sigmoid", "batch norm"]
)
@pytest.mark.parametrize("geometry", STREAMS)
def test_few_rows(geometry: str, make: Any, dtype: torch.dtype) -> None:
    for rows, depth, features in FEW:
        if geometry == "wide" and rows > 64:
            continue
        model, x = make(depth, features, dtype), drawn(rows, depth, dtype=dtype)
        stream(model, x, **STREAMS[geometry])
        found = run(model, x)
        assert_right(model, x, found)
        assert torch.equal(found, run(model, x))


def test_what_serves_many_rows_serves_few() -> None:
    model = scale_bn(512, 328, torch.bfloat16)
    for rows in (1, 5, 40, 128):
        x = drawn(rows, 512, dtype=torch.bfloat16)
        stream(model, x, stream_rows=128)
        assert_right(model, x, run(model, x))


@pytest.mark.parametrize("normalisation", ["per_element", "reciprocal", "folded", "in_registers"])
@pytest.mark.parametrize("frozen", [False, True], ids=["eval", "frozen"])
@each_product
def test_every_way_to_normalise(product: Pin, rows: int, normalisation: str, *, frozen: bool) -> None:
    model, x = scale_bn(512, 416, torch.bfloat16), drawn(rows, 512, dtype=torch.bfloat16)
    if frozen:
        model.freeze()
    product(model, x, normalisation=normalisation)
    for _ in range(2):
        assert_right(model, x, run(model, x))


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@each_product
def test_operands_anywhere(product: Pin, rows: int, dtype: torch.dtype) -> None:
    """Operands and vectors that do not begin at 16 bytes, or whose rows do not lie one after the other."""
    model = sigmoid(264, 320, dtype)
    memory = drawn(1 + rows * 264, dtype=dtype)
    weight, bias = drawn(3 + 320 * 264, dtype=dtype)[3:].view(320, 264), drawn(321, dtype=dtype)[1:]
    cases = [
        (memory[1:].view(rows, 264), weight / 16, bias),
        (drawn(264, rows, dtype=dtype).T, drawn(264, 320, dtype=dtype).T / 16, None),
        (drawn(rows, 528, dtype=dtype)[:, ::2], weight / 16, bias[:320]),
    ]
    for x, of_layer, added in cases:
        model.gemm.weight = torch.nn.Parameter(of_layer)
        model.gemm.bias = None if added is None else torch.nn.Parameter(added)
        product(model, x)
        assert_right(model, x, run(model, x))


@each_product
def test_what_is_not_finite_is_where_it_belongs(product: Pin, rows: int) -> None:
    model, x = sigmoid(512, 320, torch.float16), drawn(rows, 512, dtype=torch.float16)
    x[7, 9], x[65, 0] = torch.nan, torch.inf
    product(model, x)
    found = run(model, x)
    assert found[7].isnan().all()
    assert not found[65].isfinite().any()
    spoilt = torch.tensor([7, 65], device="cuda")
    kept = torch.ones(rows, dtype=torch.bool, device="cuda").index_fill(0, spoilt, value=False)
    assert_right(model, x[kept], found[kept])


@pytest.mark.parametrize(
    ("product", "rows"),
    [(fused, 700), (partial(fused, early_launches=True), 700), (stream, 70)],
    ids=["waits", "early", "stream"],
)
def test_a_captured_graph_follows_its_operands(product: Pin, rows: int) -> None:
    model, x = scale_bn(1024, 1024, torch.bfloat16), drawn(rows, 1024, dtype=torch.bfloat16)
    product(model, x, normalisation="folded")
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
