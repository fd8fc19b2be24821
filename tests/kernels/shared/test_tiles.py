"""Matrices in parts, tile by tile: the kernels that make them, on the CPU. What multiplies them is Hopper's alone."""

from collections.abc import Callable

import pytest
import torch
from parts_contract import fictional

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.shared.split_product import Tiles, tiles_of_both
from tunebench.studies.for_problem import problem_of
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode, Plan


def plan_for(**values: Value) -> Plan:
    """A plan for the CPU with a configuration that Hopper runs."""
    factory, cpu = load_model("gemm_scale_bn"), find_device("cpu")
    kernel, compiler = factory.kernel, compiler_for(cpu)
    problem = problem_of(factory, kernel.reference(), Mode.FROZEN)
    assert problem is not None
    configuration = kernel.space.choose({"product": "fused", **values}, problem, fictional("sm_90"))
    build = compiler.compile(kernel.variant(configuration, problem, cpu.architecture))
    return Plan(kernel, configuration, problem, cpu, compiler.load(build, None))


def content(tiles: Tiles) -> tuple[torch.Tensor, torch.Tensor]:
    return tiles.parts.view(torch.int32).clone(), tiles.exponents.tensor.clone()


def same(one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def matrices(rows: int, features: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, depth, generator=generator) * torch.logspace(-5, 5, rows)[:, None]
    return x, torch.randn(features, depth, generator=generator) * 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"weight_parts": "int8", "split_threads": 256, "product_columns": 128},
        {"weight_parts": "int8", "split_threads": 256, "product_columns": 256},
        {"weight_parts": "e4m3", "split_threads": 512},
        {"weight_parts": "fp16", "split_threads": 512, "product_columns": 128},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(5, 7, 100), (300, 260, 513), (3, 130, 9000)], ids=str)
def test_parts_are_the_same_alone_and_beside_the_other_matrix(
    values: dict[str, Value], size: tuple[int, int, int], frozen: Callable[[], object]
) -> None:
    plan = plan_for(**values)
    x, weight = matrices(*size)
    weight[3] = float("inf")
    x_tiles, w_tiles = tiles_of_both(plan, x, weight, weight, None)
    _, features, depth = size
    exponents = w_tiles.exponents.tensor
    scaled = weight * torch.exp2(exponents[:features].float())[:, None]
    sound = [feature for feature in range(features) if feature != 3]
    assert ((scaled[sound].abs().amax(1) >= 2**10) & (scaled[sound].abs().amax(1) < 2**11)).all()
    assert exponents[features:].tolist() == [int(feature == 3) for feature in range(features)]
    high = halves(w_tiles, 128, depth)[:features, :depth].float()
    assert torch.equal(high[sound], scaled[sound].half().float())
    model = frozen()
    for _ in range(2):  # the second time x alone is split
        alone, kept = tiles_of_both(plan, x, weight, weight, model)  # type: ignore[arg-type]
        assert same(content(alone), content(x_tiles)) and same(content(kept), content(w_tiles))


def halves(tiles: Tiles, tile_rows: int, depth: int) -> torch.Tensor:
    """The high parts of a weight, in rows one after the other: the latter half of a tile, in stages of 64 columns."""
    stages = -(-depth // 128)
    parts = tiles.parts.view(torch.float16).view(-1, 4 * stages, 8, tile_rows, 8)
    return parts[:, 2 * stages :].permute(0, 3, 1, 2, 4).reshape(tiles.whole, -1)


@pytest.fixture
def frozen() -> Callable[[], object]:
    def make() -> object:
        model = load_model("gemm_scale_bn").kernel.reference({"batch_size": 2, "in_features": 4, "out_features": 4})
        tuned = model.make_model(0, torch.device("cpu"), load_model("gemm_scale_bn")).eval()
        return tuned.freeze()  # type: ignore[operator]

    return make
