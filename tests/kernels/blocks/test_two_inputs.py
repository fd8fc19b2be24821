"""Products of two inputs: either way round, stacks of matrices, triangles; how they are read, on the CPU."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from one_file import load, run
from parts_contract import fictional
from sampling import slow_but

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.shared.split_product import InColumns, Tiles, tiles_of_inputs
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.errors import KernelFolderError, UserError
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Accuracy, Problem

CPU = find_device("cpu")
FORMS = {"x @ y.T": (False, False), "x @ y": (False, True), "x.T @ y": (True, True), "x.T @ y.T": (True, False)}
"""The forms, with which of the two lie in columns."""
AXES = {"products": 1, "rows": 1000, "in_features": 900, "out_features": 1000}


def model_of(folder: Path, layer: str, body: str = "", block: str = "", arguments: str = "x, y") -> TunedModule:
    """A model of this product, with what else its reference and its block have."""
    body = (body or "{}").format(layer.replace(".T", ".mT"))
    name = "".join(letter if letter.isalpha() else "_" for letter in layer)
    forward = f"def forward(self, {arguments}):\n    return {body}"
    return load(folder / f"{name}.py", "blocks.Linear", forward, f'layer = "{layer}"\n{block}')()


def laid(one: torch.Tensor, in_columns: bool) -> torch.Tensor:
    return one.mT.contiguous() if in_columns else one


def assert_right(model: TunedModule, *given: torch.Tensor, each: int = 1) -> None:
    """Configurations of each product that a CPU runs give what the reference gives in float64."""
    problem = model.problem(*given)
    assert problem is not None, model.reason
    space = model.kernel.space.enumerate(problem, CPU)
    wanted = model.reference_forward(*(one.double() for one in given))
    size = float(wanted[wanted.isfinite()].abs().max())
    by_product: dict[object, list[Configuration]] = {}
    for number in range(len(space)):
        by_product.setdefault(space[number]["product"], []).append(space[number])
    for of_product in by_product.values():
        for configuration in random.Random(3).sample(of_product, each):
            is_coarse = configuration.get("part_type") == "bf16" or configuration.get("corrections", "half") != "half"
            found = run(model, configuration, *given).double()
            tolerance = 2e-3 if is_coarse else 2e-5
            message = str(configuration)
            torch.testing.assert_close(found, wanted, rtol=0.0, atol=tolerance * size, equal_nan=True, msg=message)


@pytest.mark.slow
@pytest.mark.parametrize("layer", FORMS)
def test_every_product_reads_operands_either_way_round(tmp_path: Path, layer: str) -> None:
    x, y = torch.randn(33, 41), torch.randn(22, 41)
    x[5, 2], x[6], y[3, 1] = torch.inf, 0.0, torch.nan
    given = [laid(one, lies) for one, lies in zip((x, y), FORMS[layer], strict=True)]
    model = model_of(tmp_path, layer)
    assert_right(model, *given, each=2)
    strided = [torch.stack((one, one), -1).flatten(-2)[..., ::2] for one in given]
    assert_right(model, *strided)


def test_what_is_read_behind_a_product_is_contiguous(tmp_path: Path) -> None:
    """A residual, or one value for each row, in another order of its axes is left to the reference."""
    model = model_of(tmp_path, "x @ y.T", "torch.tanh({}) + r", 'function = "tanh(value) + r"', "x, y, r")
    x, y = torch.randn(3, 6, 16), torch.randn(3, 8, 16)
    assert model.problem(x, y, torch.randn(3, 6, 8)) is not None
    assert model.problem(x, y, torch.randn(6, 3, 8).transpose(0, 1)) is None and "'r' is not contiguous" in model.reason


@pytest.mark.slow
def test_stacks_of_matrices_are_one_matrix_or_several_products(tmp_path: Path) -> None:
    model, y = model_of(tmp_path, "x @ y"), torch.randn(5, 6)
    for shape, other, products, rows in [
        ((2, 3, 4, 5), (5, 6), 1, 24),
        ((2, 4, 5), (2, 5, 6), 2, 4),
        ((4, 5), (3, 5, 6), 3, 4),
        ((2, 1, 4, 5), (3, 5, 6), 6, 4),
        ((4, 5), (5, 6), 1, 4),
    ]:
        x, y = torch.randn(shape), torch.randn(other)
        problem = model.problem(x, y)
        assert problem is not None and (problem.axes["products"], problem.axes["rows"]) == (products, rows)
        assert_right(model, x, y)
    turned = model_of(tmp_path, "x.T @ y")
    assert_right(turned, torch.randn(2, 5, 4), torch.randn(5, 6))


def test_one_column_is_made_as_one_row(tmp_path: Path) -> None:
    model, x, y = model_of(tmp_path, "x @ y"), torch.randn(30, 70), torch.randn(70, 1)
    problem = model.problem(x, y)
    assert problem is not None and (problem.axes["rows"], problem.axes["out_features"]) == (1, 30)
    assert_right(model, x, y)
    behind = model_of(tmp_path, "x @ y.T", "{} * s", 'function = "value * s"\nper_row = ("s",)', "x, y, s")
    problem = behind.problem(x, y.T, torch.randn(30, 1))
    assert problem is not None and problem.axes["rows"] == 30  # rows are told from columns there


@pytest.mark.slow
@pytest.mark.parametrize("triangle", slow_but(["upper"], ["upper", "lower"]))
def test_a_triangle_with_functions_behind_it(tmp_path: Path, triangle: str) -> None:
    keep = "triu" if triangle == "upper" else "tril"
    block = f'triangle = "{triangle}"\nfunction = "value + 1"\nover_rows = "softmax"'
    x, y = torch.randn(20, 9), torch.randn(9, 30)
    x[2, 3] = torch.inf
    alone = model_of(tmp_path, "x @ y", f"torch.{keep}({{}})", f'triangle = "{triangle}"')
    assert_right(alone, x, y)
    x[2, 3] = 1.0
    assert_right(model_of(tmp_path, "x @ y", f"torch.softmax(torch.{keep}({{}}) + 1, -1)", block), x, y)


def test_what_is_no_product_is_the_references(tmp_path: Path) -> None:
    model = model_of(tmp_path, "x @ y", "{} + z", 'function = "value + z"', "x, y, z")
    x, y, z = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6)
    for given, why in [
        ((x[0], y, z), "a vector is no matrix"),
        ((x, y.T, z), "matrices of 5 columns and of 6 rows do not fit"),
        ((x.expand(2, 4, 5), y.expand(3, 5, 6), z), "stacks of (2,) and (3,) do not fit"),
        ((x, y, z[:1]), "'z' is (1, 6), the product (4, 6)"),
        ((x[:0], y, z[:0]), "'x' is empty"),
    ]:
        assert model.problem(*given) is None and model.reason == why
    torch.testing.assert_close(model(x, y, z[:1]), x @ y + z[:1])
    kept = model_of(tmp_path, "x.T @ y", "torch.triu({})", 'triangle = "upper"')
    assert kept.problem(torch.randn(2, 5, 4), torch.randn(2, 5, 6)) is None
    assert kept.reason == "a triangle and a normalisation are of one product alone"


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ('layer = "x.T @ weight"', "layer: 'x' is transposed, which it may be beside another argument alone"),
        ('layer = "x @ y"\nfunction = "value + y"', "function: 'y' goes into the layer"),
        ('layer = "x @ y"\ntriangle = "left"', 'triangle: give "upper" or "lower"'),
    ],
)
def test_what_is_wrong_with_a_class_is_one_line(tmp_path: Path, block: str, what: str) -> None:
    with pytest.raises(KernelFolderError) as caught:
        load(tmp_path / "wrong.py", "blocks.Linear", "def forward(self, x, y):\n    return x @ y", block)
    assert f"ModelNew.{what}" in str(caught.value) and "\n" not in str(caught.value)


def hopper() -> Device:
    return replace(fictional("sm_90"), memory_bytes=80 << 30, multiprocessors=132)


def test_slices_are_as_many_as_give_all_blocks_a_tile(tmp_path: Path) -> None:
    space = model_of(tmp_path, "x @ y").kernel.space
    fused = space.restrict(
        {name: [value] for name, value in space.default.items()}
        | {
            "product": ["fused"],
            "weight_parts": ["fp16"],
            "split_threads": [256],
            "sum_stages": [0],
            "product_slices": space.tunable("product_slices").values,
        }
    )

    def slices(**axes: int) -> set[Value]:
        return {one["product_slices"] for one in fused.enumerate(Problem(AXES | axes), hopper())}

    assert slices(rows=256, out_features=256, in_features=1 << 19) == {64, 128, 256}
    assert slices(rows=4096, out_features=4096, in_features=1 << 15) == {1}
    assert slices(rows=256, out_features=256) == {1}
    assert slices(rows=1024, out_features=1024, in_features=1 << 13) == {4, 8, 16}
    assert slices(rows=1024, out_features=1024, in_features=1 << 13, products=2) == {1}


def test_a_study_of_an_upper_triangle_begins_with_short_sums(tmp_path: Path) -> None:
    def first(kept: str, triangle: str) -> Configuration:
        space = model_of(tmp_path, "x @ y", f"torch.{kept}({{}})", f'triangle = "{triangle}"').kernel.space
        valid = space.enumerate(Problem({**AXES, "rows": 4096, "in_features": 4096, "out_features": 4096}), hopper())
        begun: Configuration = valid[
            next(one for start in space.starts if (one := valid.completing(start)) is not None)
        ]
        return begun

    found = first("triu", "upper"), first("tril", "lower")
    assert [(one["weight_parts"], one["sum_stages"]) for one in found] == [("fp16", 8), ("fp16", 32)]


def test_halves_lie_in_rows_where_the_product_of_half_types_has_all_of_them(tmp_path: Path) -> None:
    def forms(kept: str = "{}", block: str = "", **sizes: int) -> set[Value | None]:
        space = model_of(tmp_path, "x @ y", kept, block).kernel.space.restrict({"product": ["fused"]})
        problem = Problem({**AXES, "rows": 512, "in_features": 1000, "out_features": 1024, **sizes})
        return {one["weight_parts"] for one in space.enumerate(problem.at(Accuracy.TF32), hopper())}

    assert forms() - forms(out_features=1000) == {"halves"}
    assert "halves" not in forms(products=2) | forms("torch.triu({})", 'triangle = "upper"')
    turned = model_of(tmp_path, "x.T @ y").kernel.space.enumerate(Problem(AXES).at(Accuracy.TF32), hopper())
    assert "halves" not in {one.get("weight_parts") for one in turned}


def test_blocks_split_more_rows_where_these_are_short(tmp_path: Path) -> None:
    space = model_of(tmp_path, "x @ y").kernel.space
    asked = {"product": "fused", "weight_parts": "fp16", "split_threads": 512, "split_block_rows": 4}
    with pytest.raises(UserError, match="split_block_rows cannot be so"):
        space.choose(asked, Problem(AXES | {"in_features": 256}), hopper())
    space.choose(asked | {"split_block_rows": 32}, Problem(AXES | {"in_features": 64}), hopper())
    space.choose(asked, Problem(AXES | {"in_features": 1024}), hopper())


def content(tiles: Tiles) -> tuple[torch.Tensor, torch.Tensor]:
    return tiles.parts.view(torch.int32).clone(), tiles.exponents.tensor.clone()


def plan_of(folder: Path, layer: str, **values: Value) -> Plan:
    """A plan for the CPU, with a configuration that Hopper runs."""
    kernel, compiler = model_of(folder, layer).kernel, compiler_for(CPU)
    asked: dict[str, Value] = {"product": "fused", "product_columns": 128, "sum_stages": 0, **values}
    configuration = kernel.space.choose(asked, Problem(AXES), hopper())
    build = compiler.compile(kernel.variant(configuration, Problem(AXES), CPU.architecture))
    return Plan(kernel, configuration, Problem(AXES), CPU, compiler.load(build, None))


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "threads", "rows"), [("int8", 256, 4), ("e4m3", 256, 2), ("fp16", 512, 32)])
def test_parts_are_the_same_whichever_way_operands_lie(tmp_path: Path, parts: str, threads: int, rows: int) -> None:
    values: dict[str, Value] = {"weight_parts": parts, "split_threads": threads, "split_block_rows": rows}
    plans = {layer: plan_of(tmp_path, layer, **values) for layer in FORMS}
    for products, sizes, slices in ((1, (33, 21, 40), 1), (3, (130, 257, 129), 1), (1, (30, 140, 1200), 2)):
        x, y = torch.randn(products, sizes[0], sizes[2]), torch.randn(products, sizes[1], sizes[2])
        x[0, 3], y[0, 2, 1] = 0.0, torch.inf
        depth = sizes[2] if slices == 1 else -(-sizes[2] // (slices * 128)) * 128
        made = []
        for layer, lie in FORMS.items():
            both = [laid(one, turned) for one, turned in zip((x, y), lie, strict=True)]
            counts = (products * slices, *sizes[:2], depth, sizes[2])
            made.append(
                [part for one in tiles_of_inputs(plans[layer], *both, InColumns(*lie), counts) for part in content(one)]
            )
        for other in made[1:]:
            assert all(torch.equal(one, two) for one, two in zip(made[0], other, strict=True))
        for number in range(slices if slices > 1 else 0):  # each as if it were a matrix of its own
            part = torch.zeros(sizes[0], depth)
            given = x[0, :, number * depth : (number + 1) * depth]
            part[:, : given.shape[1]] = given
            counts = (1, sizes[0], sizes[0], depth, depth)
            alone, _ = tiles_of_inputs(plans["x @ y.T"], part, part, InColumns(x=False, weight=False), counts)
            words, exponents = content(alone)
            assert torch.equal(words, made[0][0].view(slices, -1)[number])
            assert torch.equal(exponents[: sizes[0]], made[0][1][: slices * sizes[0]].view(slices, -1)[number])


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", slow_but(["sm_90"], ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
)
@pytest.mark.parametrize("layer", FORMS)
def test_every_generation_builds_its_products(
    tmp_path: Path, nvrtc: NvrtcCompiler, layer: str, architecture: str
) -> None:
    asked: dict[str, Value] = {"product": "parts", "part_type": "fp16"}
    if architecture == "sm_90":
        asked = {"product": "fused", "weight_parts": "int8", "split_threads": 256}
    kernel, device = model_of(tmp_path, layer).kernel, replace(fictional(architecture), memory_bytes=80 << 30)
    configuration = kernel.space.choose(asked, Problem(AXES), device)
    built = nvrtc.compile(kernel.variant(configuration, Problem(AXES), architecture))
    assert built.code.startswith(b"\x7fELF") and built.figures


HALVES: dict[str, dict[str, Value]] = {
    "half_product": {"product": "fused", "product_columns": 256, "product_stages": 4, "product_cluster": 2},
    "half_stream": {"product": "stream", "stream_rows": 64, "stream_features": 64, "stream_stages": 4},
}
"""Our kernels of half types, by the configuration that launches them."""


@pytest.mark.parametrize("kernel", HALVES)
def test_halves_of_one_product_are_multiplied_as_a_layers(tmp_path: Path, nvrtc: NvrtcCompiler, kernel: str) -> None:
    function = 'function = "tanh(value) + r"'
    model = model_of(tmp_path, "x @ y.T", "torch.tanh({}) + r", function, "x, y, r")
    axes = {**AXES, "rows": 50, "in_features": 904, "out_features": 992}
    problem, space = Problem(axes, "bfloat16"), model.kernel.space
    configuration = space.choose(HALVES[kernel], problem, hopper())
    figures = nvrtc.compile(model.kernel.variant(configuration, problem, "sm_90")).figures[kernel]
    assert (figures.spill_stores, figures.stack) == (0, 0)
    assert not configuration.keys() & {"product_slices", "split_block_rows", "weight_parts"}
    others = [(model, replace(problem, axes={**axes, "products": 2})), (model_of(tmp_path, "x @ y"), problem)]
    for other, at in others:
        with pytest.raises(UserError, match="cannot be so"):
            other.kernel.space.choose(HALVES[kernel], at, hopper())


@pytest.mark.slow
@pytest.mark.parametrize("kernel", HALVES)
def test_the_host_launches_halves_as_the_source_declares(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the kernel itself is empty, and only a GPU's driver makes maps of tensors."""
    monkeypatch.setattr("tunebench.tuner.compile.arguments.map_bytes", lambda _: bytes(128))
    model = model_of(tmp_path, "x @ y.T", "torch.tanh({}) + r", 'function = "tanh(value) + r"', "x, y, r")
    problem = Problem({**AXES, "rows": 50, "in_features": 904, "out_features": 992}, "bfloat16")
    configuration, compiler = model.kernel.space.choose(HALVES[kernel], problem, hopper()), compiler_for(CPU)
    build = compiler.compile(model.kernel.variant(configuration, problem, CPU.architecture))
    plan = Plan(model.kernel, configuration, problem, CPU, compiler.load(build, None))
    for stack in ((), (1,)):
        x, y, r = (torch.ones(*stack, *shape).bfloat16() for shape in ((50, 904), (992, 904), (50, 992)))
        assert model.tuned_forward(plan, x, y, r).shape == (*stack, 50, 992)
