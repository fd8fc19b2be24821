"""Matrices in parts, tile by tile: the kernels that make them, on the CPU. What multiplies them is Hopper's alone."""

from collections.abc import Callable

import pytest
import torch

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.shared.split_product import RowExponents, Tiles, tiles_of_both
from tunebench.studies.for_problem import problem_of
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.kernel import Mode, Plan

HOPPER = Device(
    DeviceKind.CUDA,
    0,
    "a Hopper",
    "sm_90",
    "none",
    multiprocessors=132,
    memory_bytes=64 << 30,
    l2_bytes=50 << 20,
    max_shared_bytes=232448,
)


@pytest.fixture(autouse=True)
def nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def plan_for(**values: Value) -> Plan:
    """A plan for the CPU with a configuration that Hopper runs."""
    factory, cpu = load_model("gemm_scale_bn"), find_device("cpu")
    kernel, compiler = factory.kernel, compiler_for(cpu)
    problem = problem_of(factory, kernel.reference(), Mode.FROZEN)
    assert problem is not None
    configuration = kernel.space.choose({"product": "fused", **values}, problem, HOPPER)
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
        {"weight_parts": "int8", "split_threads": 1024},
        {"weight_parts": "e4m3", "split_threads": 512},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(5, 7, 100), (300, 260, 513), (3, 130, 9000)], ids=str)
def test_parts_depend_on_the_matrices_alone(values: dict[str, Value], size: tuple[int, int, int]) -> None:
    plan = plan_for(**values)
    x, weight = matrices(*size)
    kept = RowExponents()

    def made(exponents: RowExponents) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        found = tiles_of_both(plan, x, weight, weight, exponents, None)
        return content(found[0]), content(found[1])

    for change in (None, None, 1000.0, 0.0, float("inf")):
        if change is not None:
            weight = weight.clone()
            weight[3] *= change
        guessed, afresh = made(kept), made(RowExponents())
        assert same(guessed[0], afresh[0]) and same(guessed[1], afresh[1])
    assert guessed[1][1][3 + size[1]] == 1, "an infinite row fits no parts"


@pytest.mark.slow
@pytest.mark.parametrize("size", [(5, 7, 100), (3, 130, 9000)], ids=str)
def test_x_alone_is_split_as_with_the_weight(size: tuple[int, int, int], frozen: Callable[[], object]) -> None:
    plan = plan_for(weight_parts="int8")
    x, weight = matrices(*size)
    both, kept_weight = tiles_of_both(plan, x, weight, weight, RowExponents(), None)
    model = frozen()
    for _ in range(2):
        alone, again = tiles_of_both(plan, x, weight, weight, RowExponents(), model)  # type: ignore[arg-type]
        assert same(content(alone), content(both)) and same(content(again), content(kept_weight))


@pytest.fixture
def frozen() -> Callable[[], object]:
    def make() -> object:
        model = load_model("gemm_scale_bn").kernel.reference({"batch_size": 2, "in_features": 4, "out_features": 4})
        tuned = model.make_model(0, torch.device("cpu"), load_model("gemm_scale_bn")).eval()
        return tuned.freeze()  # type: ignore[operator]

    return make
