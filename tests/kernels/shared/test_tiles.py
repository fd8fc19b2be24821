"""Matrices in parts, tile by tile: the kernels that make them, on the CPU. What multiplies them is Hopper's alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from parts_contract import fictional
from sampling import slow_but

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.shared.split_product import LateRows, Tiles, _first_late_row, blocks_of_product, tiles_of_both
from tunebench.studies.tuning.for_problem import problem_of
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode, Plan
from tunebench.tuner.problem import Accuracy


def plan_for(mode: Mode = Mode.FROZEN, **values: Value) -> Plan:
    """A plan for the CPU with a configuration that Hopper runs."""
    factory, cpu = load_model("gemm_scale_bn"), find_device("cpu")
    kernel, compiler = factory.kernel, compiler_for(cpu)
    problem = problem_of(factory, kernel.reference(), mode)
    assert problem is not None
    problem = problem.at(Accuracy.TF32)
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
        {"weight_parts": "rounded", "sum_stages": 0, "split_threads": 512, "product_columns": 256},
        {"weight_parts": "halves", "sum_stages": 0, "split_threads": 256},
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
    tile_rows = 1 if values["weight_parts"] == "halves" else 128
    high = halves(w_tiles, tile_rows, depth)[:features, :depth].float()
    assert torch.equal(high[sound], scaled[sound].half().float())
    model = frozen()
    for _ in range(2):  # the second time x alone is split
        alone, kept = tiles_of_both(plan, x, weight, weight, model)  # type: ignore[arg-type]
        assert same(content(alone), content(x_tiles)) and same(content(kept), content(w_tiles))


@pytest.mark.slow
def test_rows_left_to_the_product_have_the_exponents_that_are_kept() -> None:
    plan = plan_for(Mode.EVAL, weight_parts="int8", split_threads=512, weight_split="beside", early_launches=True)
    x, weight = matrices(5, 500, 512)
    kept = torch.arange(500, dtype=torch.int32)
    _, whole = tiles_of_both(plan, x, weight, weight, None)
    late = LateRows(kept, torch.full((5,), 7, dtype=torch.int32), 256)
    _, early = tiles_of_both(plan, x, weight, weight, None, late)
    assert not late.counts.any()
    assert torch.equal(stages(early, 128)[:2], stages(whole, 128)[:2])
    found, wanted = early.exponents.tensor[:500], whole.exponents.tensor[:500]
    assert torch.equal(found, torch.cat((wanted[:256], kept[256:])))


@pytest.mark.parametrize("multiprocessors", [1, 7, 108, 132])
@pytest.mark.parametrize(("rows", "features"), [(1, 1), (1000, 8192), (4096, 8192), (4096, 5000), (100_000, 4096)])
@pytest.mark.parametrize("cluster", [1, 2])
def test_no_block_begins_with_rows_that_are_left_to_the_product(
    rows: int, features: int, cluster: int, multiprocessors: int
) -> None:
    device = replace(fictional("sm_90"), multiprocessors=multiprocessors)
    at_once = max(1, multiprocessors // cluster)
    x_tiles = -(-rows // 256)
    clusters, tiles = (
        blocks_of_product(x_tiles, features, cluster, device) // cluster,
        x_tiles * -(-features // (128 * cluster)),
    )
    assert 1 <= clusters <= at_once
    assert -(-tiles // clusters) == -(-tiles // at_once)  # as many rounds as with all
    first = _first_late_row(rows, features, 256, cluster, device)
    # As the kernel numbers tiles: those of x first, then those of a cluster's rows of w.
    rows_begun = {number // x_tiles * cluster * 128 for number in range(clusters)}
    assert max(rows_begun) < first <= -(-features // 128) * 128 and first % 128 == 0
    assert first == max(rows_begun) + cluster * 128 or first >= features


@pytest.mark.parametrize("mode", slow_but([Mode.FROZEN], [Mode.EVAL, Mode.FROZEN, Mode.TRAIN]))
def test_every_configuration_has_room_for_its_tiles(mode: Mode) -> None:
    factory, device = load_model("gemm_scale_bn"), fictional("sm_90")
    problem = problem_of(factory, factory.kernel.reference({"batch_size": 9000}), mode)
    assert problem is not None
    space = factory.kernel.space.restrict({"product": ["fused"], "split_threads": [512], "sum_stages": [0, 16]})
    found = set()
    for one in space.enumerate(problem.at(Accuracy.TF32), device):
        values = {name: one.get(name) for name in ("product_columns", "product_stages", "weight_parts", "weight_split")}
        columns, stages, parts, where = values.values()
        stage = (128 + int(columns)) * 128 if parts != "none" else 128 * 160 + 2 * int(columns) * 64
        beside = 3 * 4 * 2048 if where == "beside" else 0
        assert int(stages) * (stage + 16) + beside <= device.max_shared_bytes
        found.add(tuple(values.values()))
    in_rows = set() if mode is Mode.TRAIN else {"halves"}
    assert {row[2] for row in found} == {"none", "e4m3", "int8", "fp16", "rounded", *in_rows}
    assert {row[3] for row in found} == ({None} if mode is Mode.FROZEN else {None, "ahead", "beside"})


SMALLS = {
    "int8": (torch.int8, 2.0**-4 * 2.0**8, 3e-5),
    "e4m3": (torch.float8_e4m3fn, 2.0**-3 * 2.0**9, 6e-5),
    "fp16": (torch.float16, 2.0**11, 1e-6),
}
"""What the small terms' factors are, what their products are scaled by, and a bound of the error."""


@pytest.mark.slow
@pytest.mark.parametrize("parts", SMALLS)
@pytest.mark.parametrize("columns", [128, 256])
def test_stages_in_the_products_order_are_the_product(parts: str, columns: int) -> None:
    plan = plan_for(weight_parts=parts, product_columns=columns, split_threads=512)
    x, weight = matrices(300, 260, 513)
    x_tiles, w_tiles = tiles_of_both(plan, x, weight, weight, None)
    kind, scale, bound = SMALLS[parts]
    x_stages, w_stages = (stages(tiles, rows) for tiles, rows in ((x_tiles, columns), (w_tiles, 128)))
    half = x_stages.shape[1] // 2
    # In fp16 the small terms' factors are all there is; of x the high parts are the first of them.
    smalls, highs = (2 * half, 0) if kind is torch.float16 else (half, half)
    whole = multiplied(w_stages[:, :smalls], x_stages[:, :smalls], kind) / scale
    whole += multiplied(w_stages[:, half:], x_stages[:, highs : highs + half], torch.float16)
    found = whole.flatten(0, 1).flatten(1)[:260, :300].T
    exponents = x_tiles.exponents.tensor[:300, None] + w_tiles.exponents.tensor[:260]
    x64, weight64 = x.double(), weight.double()
    error = (found * torch.exp2(-exponents.double()) - x64 @ weight64.T).abs() / (x64.abs() @ weight64.abs().T)
    assert float(error.max()) < bound


def stages(tiles: Tiles, tile_rows: int) -> torch.Tensor:
    """(tiles, stages, rows, 128), uint8: a stage is [16 bytes along the depth][row][16 bytes]."""
    memory = tiles.parts.view(torch.uint8).view(tiles.whole // tile_rows, -1, 8, tile_rows, 16)
    return memory.permute(0, 1, 3, 2, 4).flatten(3)


def multiplied(w_stages: torch.Tensor, x_stages: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """(tiles of w, rows of a tile, tiles of x, rows of a tile), float64: the sum of the stages' products."""
    w, x = (one.contiguous().view(kind).double() for one in (w_stages, x_stages))
    return torch.einsum("asrk,bsqk->arbq", w, x)


def halves(tiles: Tiles, tile_rows: int, depth: int) -> torch.Tensor:
    """The high parts of a weight, in rows one after the other: a tile's last stages, of 64 columns each."""
    stages = 2 * -(-depth // 128)
    parts = tiles.parts.view(torch.float16).view(tiles.whole // tile_rows, -1, 8, tile_rows, 8)
    return parts[:, -stages:].permute(0, 3, 1, 2, 4).reshape(tiles.whole, -1)


@pytest.fixture
def frozen() -> Callable[[], object]:
    def make() -> object:
        model = load_model("gemm_scale_bn").kernel.reference({"batch_size": 2, "in_features": 4, "out_features": 4})
        tuned = model.make_model(0, torch.device("cpu"), load_model("gemm_scale_bn")).eval()
        return tuned.freeze()  # type: ignore[operator]

    return make
