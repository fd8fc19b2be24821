"""The fused product of two inputs against float64: either way round, stacks, slices, triangles, what is not finite."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from parts_contract import error

from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device

pytestmark = pytest.mark.gpu

FILE = """
import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return {body}


class ModelNew(blocks.Linear, Model):
    layer = "{layer}"
    {triangle}


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(8, 8), torch.rand(8, 8)]


def get_init_inputs() -> list[object]:
    return []
"""
FORMS = {"x @ y.T": (False, False), "x @ y": (False, True), "x.T @ y": (True, True), "x.T @ y.T": (True, False)}
"""The forms of a product, with which of its inputs lie in columns."""
PARTS = {"e4m3": 6e-5, "int8": 3e-5, "fp16": 3e-6}
SIZES = [
    (1, 3, 2, 1),
    (1, 130, 33, 257),
    (3, 257, 513, 100),
    (5, 64, 130, 1001),
    (1, 1000, 127, 4096),
    (2, 300, 900, 64),
]
"""Products, rows, features, depth."""


def model_of(folder: Path, layer: str, triangle: str = "") -> TunedModule:
    product = layer.replace(".T", ".mT")
    body = f"torch.{'triu' if triangle == 'upper' else 'tril'}({product})" if triangle else product
    name = "".join(letter if letter.isalnum() else "_" for letter in f"{layer}{triangle}")
    file = folder / f"{name}.py"
    file.write_text(FILE.format(layer=layer, body=body, triangle=f'triangle = "{triangle}"' if triangle else ""))
    model: TunedModule = import_model(str(file))()
    return model


def run(model: TunedModule, device: Device, x: torch.Tensor, y: torch.Tensor, **values: Value) -> torch.Tensor:
    """Multiply by the fused product from parts."""
    parts: dict[str, Value] = {"product": "fused", "split_threads": 256, "split_block_rows": 32, "sum_stages": 8}
    return run_with(parts | values, model, device, x, y)


def run_with(
    asked: Mapping[str, Value], model: TunedModule, device: Device, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("our products need Hopper's warpgroup products")
    problem = model.problem(x, y)
    assert problem is not None, model.reason
    configuration = model.kernel.space.choose(asked, problem, device)
    model.pin(build_plan(model.kernel, configuration, problem, device, compiler_for(device)))
    with torch.no_grad():
        return model(x, y)


def matrices(products: int, rows: int, features: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(depth)
    x = torch.randn(products, rows, depth, device="cuda", generator=generator)
    return x, torch.randn(products, features, depth, device="cuda", generator=generator)


def laid(one: torch.Tensor, in_columns: bool) -> torch.Tensor:
    """A matrix as the form takes it, without the stack where there is one product."""
    one = one.mT.contiguous() if in_columns else one
    return one[0] if one.shape[0] == 1 else one


@pytest.mark.parametrize("layer", FORMS)
@pytest.mark.parametrize(("parts", "columns", "cluster"), [("e4m3", 256, 2), ("int8", 128, 2), ("fp16", 256, 1)])
def test_sizes_and_stacks(cuda: Device, tmp_path: Path, layer: str, parts: str, columns: int, cluster: int) -> None:
    model = model_of(tmp_path, layer)
    for size in SIZES:
        x, weight = matrices(*size)
        given = [laid(one, lies) for one, lies in zip((x, weight), FORMS[layer], strict=True)]
        values = {"weight_parts": parts, "product_columns": columns, "product_cluster": cluster}
        found = run(model, cuda, *given, **values).view(*x.shape[:2], -1)
        for one, other, made in zip(x, weight, found, strict=True):
            assert error(made, one, other) < PARTS[parts], size
        assert torch.equal(found, run(model, cuda, *given, **values).view(found.shape))


@pytest.mark.parametrize("layer", FORMS)
@pytest.mark.parametrize("slices", [32, 64])
def test_slices_of_the_depth_are_added_in_one_order(cuda: Device, tmp_path: Path, layer: str, slices: int) -> None:
    model = model_of(tmp_path, layer)
    for depth in (512 * slices, 512 * slices + 77):
        x, weight = matrices(1, 150, 290, depth)
        given = [laid(one, lies) for one, lies in zip((x, weight), FORMS[layer], strict=True)]
        found = run(model, cuda, *given, weight_parts="int8" if depth < 66_000 else "e4m3", product_slices=slices)
        assert error(found, x[0], weight[0]) < 6e-5
        assert torch.equal(found, model(*given))


@pytest.mark.parametrize("triangle", ["upper", "lower"])
@pytest.mark.parametrize(("columns", "cluster"), [(256, 2), (128, 1)])
def test_what_lies_beyond_a_triangle_is_zero(
    cuda: Device, tmp_path: Path, triangle: str, columns: int, cluster: int
) -> None:
    model = model_of(tmp_path, "x @ y.T", triangle)
    for rows, features in ((1000, 1000), (300, 1500), (1500, 300)):
        x, weight = matrices(1, rows, features, 200)
        x[0, 3, 7], weight[0, 250, 5], x[0, 5] = torch.inf, torch.nan, 0.0
        values: dict[str, Value] = {"weight_parts": "fp16", "product_columns": columns, "product_cluster": cluster}
        found = run(model, cuda, x[0], weight[0], **values)
        wanted = (torch.triu if triangle == "upper" else torch.tril)(x[0].double() @ weight[0].double().T)
        torch.testing.assert_close(found.double(), wanted, rtol=0.0, atol=5e-4, equal_nan=True)


@pytest.mark.parametrize("layer", FORMS)
def test_rows_that_parts_cannot_hold_are_computed_again(cuda: Device, tmp_path: Path, layer: str) -> None:
    model = model_of(tmp_path, layer)
    for size, slices in (((3, 200, 300, 129), 1), ((1, 200, 300, 16500), 32)):
        x, weight = matrices(*size)
        x[-1, 7, 3], x[0, 8] = torch.inf, 0.0
        weight[0, 250, 5], weight[-1, 6, -1], x[0, 9] = torch.nan, 3e38, x[0, 9] * 2.0**-120
        given = [laid(one, lies) for one, lies in zip((x, weight), FORMS[layer], strict=True)]
        found = run(model, cuda, *given, weight_parts="int8", product_slices=slices).view(*x.shape[:2], -1)
        strict, size_of = x @ weight.mT, (x.abs() @ weight.abs().mT).clamp_min(1e-30)
        torch.testing.assert_close(found / size_of, strict / size_of, rtol=0.0, atol=3e-5, equal_nan=True)


def test_one_tensor_may_be_both(cuda: Device, tmp_path: Path) -> None:
    x, _ = matrices(1, 300, 300, 500)
    for layer, wanted in (("x @ y.T", x[0] @ x[0].T), ("x.T @ y", x[0].T @ x[0])):
        found = run(model_of(tmp_path, layer), cuda, x[0], x[0], weight_parts="fp16")
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "features", "depth", "values"),
    [
        (1000, 1504, 904, {"product": "fused", "product_columns": 256, "product_cluster": 2}),
        (130, 288, 64, {"product": "fused", "product_columns": 128, "product_cluster": 1}),
        (33, 1504, 904, {"product": "stream", "stream_rows": 64, "stream_features": 64, "stream_split": 2}),
    ],
)
def test_halves_of_one_product(
    cuda: Device, tmp_path: Path, dtype: torch.dtype, rows: int, features: int, depth: int, values: dict[str, Value]
) -> None:
    model = model_of(tmp_path, "x @ y.T")
    x, weight = (one.to(dtype) for one in matrices(1, rows, features, depth))
    wanted = x.double() @ weight.double().mT
    for given in ((x, weight), (x[0], weight[0])):
        found = run_with(values, model, cuda, *given).double().view_as(wanted)
        assert float((found - wanted).abs().max()) < torch.finfo(dtype).eps * float(wanted.abs().max())
