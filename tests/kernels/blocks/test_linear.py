"""The linear block: every kind of operand and product behind each other, on the CPU, and what is wrong with a class."""

import copy
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from one_file import load, run

from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import any_gpu, find_device
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.problem import Problem

CPU = find_device("cpu")
EXAMPLES = sorted((Path(__file__).parent / "linear_examples").glob("*.py"), key=str)
SIZES = {"in_features": 14, "out_features": 24}
TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2}
LINEAR = """
def __init__(self, features=12):
    super().__init__()
    self.linear = nn.Linear(7, features)

def forward(self, x):
    return {body}
"""
FUSED = ("batch_norm_softmax", "group_norm_hardtanh", "inputs_gelu", "residual_batch_norm", "swish_scale")
FORMS = {
    "softmax": "F.softmax({}, 1)",
    "log_softmax": "F.log_softmax({}, 1)",
    "logsumexp": "torch.logsumexp({}, 1)",
    "sum": "{}.sum(1)",
    "mean": "{}.mean(1)",
    "max": "{}.max(1)[0]",
}


def made(path: Path, mode: str, dtype: str = "float32") -> TunedModule:
    """A model of that file with parameters and statistics that are not those it begins with."""
    torch.manual_seed(4)
    factory = import_model(str(path))
    model = factory(*factory.kernel.reference(SIZES).get_init_inputs())
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * 0.3)
    return model.to(getattr(torch, dtype)).train(mode == "train")


def inputs(path: Path, rows: int, dtype: str) -> list[torch.Tensor]:
    torch.manual_seed(rows)
    drawn = import_model(str(path)).kernel.reference({**SIZES, "batch_size": rows}).get_inputs()
    return [(one - 0.5).to(getattr(torch, dtype)) for one in drawn]


def sample(model: TunedModule, count: int, *given: torch.Tensor) -> list[Configuration]:
    """Configurations that differ, of the space of a call with these inputs."""
    problem = model.problem(*given)
    assert problem is not None, model.reason
    space = model.kernel.space.enumerate(problem, CPU)
    return [space[number] for number in random.Random(5).sample(range(len(space)), count)]


def is_coarse(configuration: Configuration) -> bool:
    """Whether a product has fewer than 20 bits: from two parts in bf16, or with corrections of eight bits."""
    return configuration.get("part_type") == "bf16" or configuration.get("corrections", "half") != "half"


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_statistics_are_the_references(path: Path, dtype: str) -> None:
    for mode in ("eval", "train") if "batch_norm" in path.stem else ("eval",):
        given = inputs(path, 37, dtype)
        for configuration in sample(made(path, mode, dtype), 2 if dtype == "float32" else 1, *given):
            model = made(path, mode, dtype)
            reference = copy.deepcopy(model).double()
            with torch.no_grad():
                wanted = reference.reference_forward(*(one.double() for one in given))
            found = run(model, configuration, *given)
            tolerance = 2e-3 if is_coarse(configuration) else TOLERANCE[dtype]
            size = float(wanted.abs().max())
            torch.testing.assert_close(found.double(), wanted, rtol=0, atol=tolerance * size, msg=str(configuration))
            for one, other in zip(model.buffers(), reference.buffers(), strict=True):
                torch.testing.assert_close(one.double(), other.double(), rtol=3e-2, atol=3e-2)


@pytest.mark.slow
def test_of_equal_values_the_mean_of_a_group_is_each_of_them() -> None:
    """As a function that saturates leaves them: what a sum is off by would be all that is left, times 1 / sqrt(eps)."""
    path = next(path for path in EXAMPLES if path.stem == "group_norm_hardtanh")
    factory, given = import_model(str(path)), inputs(path, 9, "float32")
    model = factory(*factory.kernel.reference({**SIZES, "out_features": 88}).get_init_inputs())
    with torch.no_grad():
        model.gemm.weight.zero_()
        model.gemm.bias.copy_(torch.linspace(0.5, 0.9, 8).repeat_interleave(11))
        model.group_norm.bias.fill_(0.25)
        for configuration in sample(model, 6, *given):
            torch.testing.assert_close(run(model, configuration, *given), torch.full((9, 88), 0.25), rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_nvrtc_builds_every_product(nvrtc: NvrtcCompiler, path: Path) -> None:
    kernel = import_model(str(path)).kernel
    # The fused product takes seconds to compile: one of each kind of epilogue has it.
    others = [("parts", "float32"), ("fp32", "float16")]
    for product, dtype in [("fused", "float32")] if path.stem in FUSED else others:
        configuration = Configuration({**kernel.space.default, "product": product})
        built = nvrtc.compile(kernel.variant(configuration, Problem({}, dtype), "sm_90"))
        assert built.code.startswith(b"\x7fELF"), (product, dtype)
        if product == "fused":
            assert (built.figures["split_product"].registers or 0) > 100


@pytest.mark.slow
def test_a_frozen_model_follows_its_weights_and_statistics() -> None:
    path = next(path for path in EXAMPLES if path.stem == "residual_batch_norm")
    model, given = made(path, "eval").freeze(), inputs(path, 9, "float32")
    with torch.no_grad():
        for change in (lambda: model.weight.mul_(2.0), lambda: model.norm.running_var.add_(1.0), lambda: None):
            change()
            for configuration in sample(model, 2, *given):
                found, wanted = run(model, configuration, *given), model.reference_forward(*given)
                torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_operands_of_other_shapes_are_the_references() -> None:
    path = next(path for path in EXAMPLES if path.stem == "residual_batch_norm")
    model, (x, residual, gate) = made(path, "eval"), inputs(path, 24, "float32")
    with torch.no_grad():
        for other in ((x, residual, gate.t()), (x, residual[:, :1], gate), (x, residual[:1], gate)):
            assert model.problem(*other) is None
            torch.testing.assert_close(model(*other), model.reference_forward(*other))
        assert model.problem(x, residual, gate.t()) is None
        assert model.reason == "'gate' is (1, 24), which is not one value for each row"
        assert model.problem(x, residual.t().contiguous().t(), gate) is None


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_rows(tmp_path: Path, form: str) -> None:
    body = FORMS[form].format("torch.relu(self.linear(x))")
    block = f'layer = "linear"\nfunction = "relu(value)"\nover_rows = "{form}"\nfinish = "2 * value"'
    factory = load(tmp_path / f"{form}.py", "blocks.Linear", LINEAR.format(body=f"2 * {body}"), block)
    for dtype in ("float32", "float64"):
        model, x = factory(33).to(getattr(torch, dtype)), torch.randn(5, 7, dtype=getattr(torch, dtype))
        (configuration,) = sample(model, 1, x)
        tolerance = 1e-2 if is_coarse(configuration) else 1e-4 if dtype == "float32" else 1e-12
        found, wanted = run(model, configuration, x), model.reference_forward(x)
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_studies_of_fp32_begin_with_an_exact_tanh_and_of_half_types_with_a_fast_one(tmp_path: Path) -> None:
    def starts(function: str, body: str) -> set[tuple[object, object]]:
        block = f'layer = "linear"\nfunction = "{function}"'
        found = load(tmp_path / "one.py", "blocks.Linear", LINEAR.format(body=body), block).kernel.space.starts
        return {("weight_parts" in one, one["fast_math"]) for one in found}

    assert starts("tanh(value)", "torch.tanh(self.linear(x))") == {(True, False), (False, True)}
    assert starts("sigmoid(value)", "torch.sigmoid(self.linear(x))") == {(True, True), (False, True)}


def test_rows_and_products_both_have_to_fit_shared_memory(tmp_path: Path) -> None:
    body = 'layer = "linear"\nover_rows = "softmax"'
    factory = load(tmp_path / "wide.py", "blocks.Linear", LINEAR.format(body="F.softmax(self.linear(x), 1)"), body)
    axes = {"rows": 2048, "in_features": 64, "out_features": 50_000, "features": 50_000}
    problem = Problem(axes, "float32", {"mode": "eval"})
    device = replace(any_gpu("sm_90"), multiprocessors=132, max_shared_bytes=160 * 1024)
    space = factory.kernel.space
    narrow = {name: [value] for name, value in space.default.items()} | {"product": ["fp32"], "vector_width": [1, 4]}
    rows = narrow | {name: space.tunable(name).values for name in ("keep", "block_size", "row_threads")}
    kinds = {one["keep"] for one in space.restrict(rows).enumerate(problem, device)}
    assert kinds == {"memory"}  # a row is 200,000 bytes
    products = rows | {"product": ["fused"], "product_stages": space.tunable("product_stages").values}
    stages = {one["product_stages"] for one in space.restrict(products).enumerate(problem, device)}
    assert stages == {3}


@pytest.mark.slow
def test_a_value_of_the_row_beside_those_of_its_elements(tmp_path: Path) -> None:
    block = 'layer = "linear"\nover_rows = "mean"\nfinish = "gelu(value) + other * scale"\nper_feature = ("scale",)'
    text = """
def __init__(self):
    super().__init__()
    self.linear = nn.Linear(7, 12)
    self.scale = nn.Parameter(torch.rand(12))

def forward(self, x, other):
    return F.gelu(self.linear(x).mean(1, keepdim=True)) + other * self.scale
"""
    model = load(tmp_path / "beside.py", "blocks.Linear", text, block)()
    x, other = torch.randn(5, 7), torch.randn(5, 12)
    for configuration in sample(model, 2, x, other):
        found, wanted = run(model, configuration, x, other), model.reference_forward(x, other)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_a_model_whose_layer_has_the_name_of_an_attribute_is_told(tmp_path: Path) -> None:
    text = LINEAR.format(body="torch.relu(self.layer(x))").replace("self.linear =", "self.layer =")
    model = load(tmp_path / "hidden.py", "blocks.Linear", text, 'layer = "layer"\nfunction = "relu(value)"')()
    with pytest.raises(KernelFolderError, match=r"ModelNew\.layer: the model has a 'layer' of its own"):
        model(torch.randn(2, 7))


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ('layer = "linear"\nfunction = "value * scale"', "function: unknown name 'scale' (known: x, value)"),
        ('function = "value"', 'layer: give the path of an nn.Linear, or a product such as "x @ weight.T"'),
        ('layer = "y @ weight"', "layer: 'y' is no argument of forward (x)"),
        ('layer = "linear"\nfunction = "value + x"', "function: 'x' goes into the layer"),
        ('layer = "linear"\nfunction = 2', "function: give a device function as text"),
        ('layer = "linear"\nper_channel = ("bias",)', "per_channel: this block has no such operands"),
        ('layer = "linear"\nover_rows = "softmin"', "over_rows: 'softmin' is none of softmax, log_softmax"),
        (
            'layer = "linear"\nover_rows = "max"\ngroup_norm_at = "gn"',
            "group_norm_at: give one of over_rows, group_norm",
        ),
        ('layer = "linear"\nreductions = {"top": 3}', "reductions: 'top' is 3: give Sum, Product, Max or Min"),
    ],
)
def test_what_is_wrong_with_a_class_is_one_line(tmp_path: Path, block: str, what: str) -> None:
    with pytest.raises(KernelFolderError) as caught:
        load(tmp_path / "wrong.py", "blocks.Linear", LINEAR.format(body="self.linear(x)"), block)
    assert f"ModelNew.{what}" in str(caught.value) and "\n" not in str(caught.value)
