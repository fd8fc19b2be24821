"""Row reductions on the CPU: every way to keep a row, odd sizes and alignments, NaN and infinities, and the errors."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hopper import HOPPER
from one_file import CPU, load, run

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.problem import Problem

SOFTMAX = """
def forward(self, x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)
"""
SOFTMAX_BLOCK = """
reductions = {"top": blocks.Max("x"), "sum": blocks.Sum("exp(x - top)")}
function = "exp(x - top) / sum"
"""
RMS = """
def __init__(self, features):
    super().__init__()
    self.weight = nn.Parameter(torch.randn(features))
    self.eps = 1e-5

def forward(self, x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
"""
RMS_BLOCK = """
reductions = {"squares": blocks.Sum("x * x")}
function = "x * rsqrt(squares / features + eps) * weight"
scalars = ("eps",)
per_feature = ("weight",)
"""
LAYER = """
def __init__(self, features):
    super().__init__()
    self.norm = nn.LayerNorm(features)
    nn.init.normal_(self.norm.weight), nn.init.normal_(self.norm.bias)

def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return self.norm(x + y)
"""
LAYER_BLOCK = """
reductions = {"sum": blocks.Sum("x + y"), "squares": blocks.Sum("square(x + y - sum / features)")}
function = "(x + y - sum / features) * rsqrt(squares / features + eps) * weight + bias"
scalars = {"eps": "norm.eps"}
per_feature = {"weight": "norm.weight", "bias": "norm.bias"}
"""
LOGSUMEXP = """
def forward(self, x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, -1)
"""
LOGSUMEXP_BLOCK = """
reductions = {"top": blocks.Max("x"), "sum": blocks.Sum("exp(x - zero_if_infinite(top))")}
function = "log(sum) + zero_if_infinite(top)"
"""
EXTREMES = """
def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    sizes = x.amax((-2, -1), keepdim=True) - x.amin((-2, -1), keepdim=True)
    return scale * sizes * torch.sign(x).flatten(-2).prod(-1)[..., None, None]
"""
EXTREMES_BLOCK = """
reductions = {"top": blocks.Max("x"), "least": blocks.Min("x"), "signs": blocks.Product("sign(x)")}
function = "scale * (top - least) * signs"
per_row = ("scale",)
row_dimensions = 2
keepdim = True
"""
GROUPS = """
def __init__(self, groups, channels):
    super().__init__()
    self.norm = nn.GroupNorm(groups, channels)
    nn.init.normal_(self.norm.weight), nn.init.normal_(self.norm.bias)

def forward(self, x: torch.Tensor) -> torch.Tensor:
    return self.norm(x)
"""
GROUPS_BLOCK = """
reductions = {"sum": blocks.Sum("x"), "squares": blocks.Sum("square(x - sum / features)")}
function = "(x - sum / features) * rsqrt(squares / features + eps) * weight + bias"
scalars = {"eps": "norm.eps"}
per_channel = {"weight": "norm.weight", "bias": "norm.bias"}
groups = "norm.num_groups"
"""
CASES = {
    "softmax": (SOFTMAX, SOFTMAX_BLOCK, 1),
    "rms": (RMS, RMS_BLOCK, 1),
    "layer": (LAYER, LAYER_BLOCK, 2),
    "logsumexp": (LOGSUMEXP, LOGSUMEXP_BLOCK, 1),
}


@pytest.fixture(scope="module")
def factories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, type[TunedModule]]:
    folder = tmp_path_factory.mktemp("rows")
    return {name: load(folder / f"{name}.py", "blocks.Rows", *texts) for name, (*texts, _) in CASES.items()}


def made(factories: dict[str, type[TunedModule]], name: str, features: int) -> TunedModule:
    return factories[name](features) if name in ("rms", "layer") else factories[name]()


def of_every_kind(model: TunedModule, problem: Problem, seed: int) -> Iterator[Configuration]:
    """A configuration for each way to keep a row, any other choice made by the seed."""
    space = list(model.kernel.space.enumerate(problem, CPU))
    random.Random(seed).shuffle(space)
    for keep in ("registers", "shared", "memory", "split"):
        yield from [one for one in space if one["keep"] == keep][:1]


def exact(model: TunedModule, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return copy.deepcopy(model).double().reference_forward(*[one.double() for one in inputs])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows", "features"),
    [
        *(("softmax", 5, 1), ("softmax", 5, 1031), ("softmax", 2, 2048)),
        *(("layer", 3, 7), ("layer", 5, 1031), ("layer", 2, 2048)),
        *(("rms", 3, 1026), ("logsumexp", 5, 1031)),
    ],
)
def test_every_way_to_keep_a_row(factories: dict[str, type[TunedModule]], name: str, rows: int, features: int) -> None:
    model = made(factories, name, features)
    memory = torch.randn(2, rows * features + 3)
    shape = (rows, features)
    problem = model.problem(*[one[: rows * features].view(shape) for one in memory][: CASES[name][2]])
    assert problem is not None and problem.axes == {"rows": rows, "features": features}
    configurations = list(of_every_kind(model, problem, features))
    assert features < 1000 or len(configurations) == 4
    for configuration in configurations:
        for offset in (0, 1):
            inputs = [one[offset : offset + rows * features].view(shape) for one in memory][: CASES[name][2]]
            found = run(model, configuration, *inputs)
            assert torch.allclose(found.double(), exact(model, inputs), rtol=1e-5, atol=1e-5), configuration


def infinite(features: int) -> torch.Tensor:
    """Rows with an infinity, a NaN, nothing but negative infinities, one of these, and both infinities."""
    x = torch.randn(6, features)
    x[1, 0], x[2, features // 2], x[3], x[4, -1] = float("inf"), float("nan"), -float("inf"), -float("inf")
    x[5, 0], x[5, -1] = float("inf"), -float("inf")
    return x


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "logsumexp"])
def test_infinities_and_nans_are_the_references(factories: dict[str, type[TunedModule]], name: str) -> None:
    model = made(factories, name, 0)
    x = infinite(2050)
    problem = model.problem(x)
    assert problem is not None
    for number, configuration in enumerate(of_every_kind(model, problem, 3)):
        online = Configuration({**configuration, "online": number % 2 == 0})
        found, wanted = run(model, online, x), model.reference_forward(x)
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True), online


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types(factories: dict[str, type[TunedModule]], dtype: torch.dtype) -> None:
    for name, features in (("softmax", 515), ("layer", 1024)):
        model = made(factories, name, features).to(dtype)
        inputs = [torch.randn(3, features).to(dtype) for _ in range(CASES[name][2])]
        problem = model.problem(*inputs)
        assert problem is not None
        configuration = next(of_every_kind(model, problem, 5))
        tolerance = 1e-10 if dtype is torch.float64 else 2e-2
        found = run(model, configuration, *inputs)
        assert found.dtype == dtype
        assert torch.allclose(found.double(), exact(model, inputs), rtol=tolerance, atol=tolerance), configuration


def test_values_of_rows_of_several_dimensions(tmp_path: Path) -> None:
    factory = load(tmp_path / "extremes.py", "blocks.Rows", EXTREMES, EXTREMES_BLOCK)
    model, x, scale = factory(), torch.randn(2, 3, 5, 7), torch.randn(2, 3, 1, 1)
    problem = model.problem(x, scale)
    assert problem is not None and problem.axes == {"rows": 6, "features": 35}
    for configuration in of_every_kind(model, problem, 1):
        found, wanted = run(model, configuration, x, scale), model.reference_forward(x, scale)
        assert found.shape == wanted.shape and torch.allclose(found, wanted)
    assert model.problem(x, scale[:1]) is None and model.reason == "'scale' has the shape (1, 3, 1, 1)"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 6, 5, 4), (3, 6, 7), (2, 6, 40, 40)])
def test_groups_of_channels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    factory = load(tmp_path / "groups.py", "blocks.Rows", GROUPS, GROUPS_BLOCK)
    for groups in (3, 6):
        model, x = factory(groups, 6), torch.randn(shape)
        problem = model.problem(x)
        assert problem is not None and problem.axes["rows"] == shape[0] * groups
        for configuration in list(of_every_kind(model, problem, groups))[groups % 2 :: 2]:
            found = run(model, configuration, x)
            assert torch.allclose(found.double(), exact(model, [x]), rtol=1e-5, atol=1e-5), configuration
    model.norm.num_groups = 4
    assert model.problem(torch.randn(shape)) is None and model.reason == "6 channels are not of 4 groups"


def test_what_does_not_lie_in_rows_is_the_references(factories: dict[str, type[TunedModule]]) -> None:
    model = made(factories, "softmax", 0)
    for x in (torch.randn(6, 8).t(), torch.randn(6, 16)[:, :8], torch.randn(0, 4), torch.randn(4, 0)):
        assert model.problem(x) is None
        assert torch.equal(model(x), torch.softmax(x, -1))
    assert model.problem(torch.tensor(1.0)) is None


def test_online_is_a_choice_where_a_maximum_is_followed_by_its_sum(tmp_path: Path) -> None:
    texts = {
        'blocks.Sum("exp( x-top )")': True,
        'blocks.Sum("exp((x) - top)")': True,
        'blocks.Sum("exp(2 * x - top)")': False,
        'blocks.Sum("exp(top - x)")': False,
    }
    for number, (text, found) in enumerate(texts.items()):
        block = SOFTMAX_BLOCK.replace('blocks.Sum("exp(x - top)")', text)
        kernel = load(tmp_path / f"one{number}.py", "blocks.Rows", SOFTMAX, block).kernel
        assert ("online" in kernel.space.names) == found, text


WRONG = {
    "no reductions": ({"reductions = ": "others = "}, r"ModelNew.reductions: give a dict of reductions"),
    "no reduction": ({'blocks.Max("x")': '"x"'}, r"ModelNew.reductions: 'top' is 'x': give Sum, Product, Max or Min"),
    "no text": ({'blocks.Max("x")': "blocks.Max(1)"}, r"ModelNew.reductions: 'top' is Max\(text=1\): give Sum"),
    "a name of forward's": ({'"top"': '"x"'}, r"ModelNew.reductions: 'x' cannot name a reduction"),
    "a later one": ({'blocks.Max("x")': 'blocks.Max("x * sum")'}, r"'top' uses 'sum', which comes no earlier"),
    "an unknown name": (
        {'(x - top)")': '(z - top)")'},
        r"ModelNew.reductions\['sum'\]: unknown name 'z' \(known: x, top",
    ),
    "no tensor": (
        {"x - top": "1 - top", '"x"': '"2"', "x -": "1 -"},
        r"ModelNew.reductions: they use no tensor of forward \(x\)",
    ),
    "groups": ({"function": "groups = 1.5\nfunction"}, r"ModelNew.groups: it is 1.5: give a number, or the path"),
    "no row": ({"function": "row_dimensions = 0\nfunction"}, r"ModelNew.row_dimensions: it is 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_attribute_is_one_line_that_names_it(case: str, tmp_path: Path) -> None:
    changes, message = WRONG[case]
    block = SOFTMAX_BLOCK
    for old, new in changes.items():
        block = block.replace(old, new)
    with pytest.raises(KernelFolderError, match=message):
        load(tmp_path / "wrong.py", "blocks.Rows", SOFTMAX, block)


@pytest.mark.parametrize("features", [3, 256, 4096, 32768, 50257, 1_000_003])
def test_spaces_are_of_moderate_size_and_have_a_default(factories: dict[str, type[TunedModule]], features: int) -> None:
    for factory in factories.values():
        for dtype in ("float32", "bfloat16", "float64"):
            space = factory.kernel.space.enumerate(Problem({"rows": 128, "features": features}, dtype), HOPPER)
            assert 10 < len(space) < 5000
            assert space[space.default]["vector_width"] * Problem({}, dtype).item_bytes == 16


@pytest.mark.slow
def test_nvrtc_builds_every_family(nvrtc: NvrtcCompiler, factories: dict[str, type[TunedModule]]) -> None:
    problem = Problem({"rows": 64, "features": 4096})
    for name in ("softmax", "layer"):
        kernel = factories[name].kernel
        for number, configuration in enumerate(of_every_kind(factories[name](*[8] * (name == "layer")), problem, 2)):
            if (number % 2 == 0) == (name == "softmax"):
                built = nvrtc.compile(kernel.variant(configuration, problem, "sm_90"))
                assert set(built.figures) == {"rows_at_once", "row_partials", "row_results"}, configuration
