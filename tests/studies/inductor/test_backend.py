"""The back end of Dynamo's: what it compiles is right, by tuned kernels where results say that they are faster."""

from __future__ import annotations

import operator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from recorded_regions import record
from torch import fx, nn
from torch._inductor import config
from torch._inductor.inductor_prims import prepare_softmax_online
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.nn import functional

from tunebench.kernels.runtime.policy import set_accuracy
from tunebench.studies.inductor import attention
from tunebench.studies.inductor.backend import tunebench
from tunebench.studies.inductor.find import find_regions
from tunebench.studies.inductor.known import model_in, problem_of, regions_folder, state_of_regions
from tunebench.studies.inductor.optimize import write_kernel
from tunebench.studies.inductor.region import Region, Value, text_of
from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import Ratio
from tunebench.tuner.settings import Setting, under

pytestmark = pytest.mark.slow


class Gate(nn.Module):
    """Products that are a library's, and what a model does with them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 16, 16) / 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Gate twice: two equal regions."""
        for _ in range(2):
            x = functional.silu(torch.bmm(x, self.weight)) * y
        return x


class Layers(nn.Module):
    """A layer of which several things are computed, element by element."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32, bias=False), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Two regions, of which the second has the first in its product and the input beside it."""
        return torch.softmax(y + self.second(functional.gelu(self.first(x))) * 2, -1)


class Images(nn.Module):
    """Convolutions of images in NCHW, each with a normalisation behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shortcut = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.Conv2d(16, 24, 1, stride=2)
        self.second = nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(24)])
        for norm in self.norms:
            norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Three regions: one reads what the model is given, one what another makes beside its own product."""
        x = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(x)) + self.shortcut(x)).mean((2, 3))


def inputs(rows: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, rows, 16), torch.randn(2, rows, 16)


def written(model: nn.Module) -> Region:
    """Write the kernel of a model's only region."""
    with torch.no_grad():
        (report,) = find_regions(model, inputs())
    assert report.calls == 2
    write_kernel(report, regions_folder() / report.region.name)
    return report.region


def compiled_code(model: nn.Module, **options: Any) -> tuple[Any, str]:
    """Return what a compiled model gives, and the program that Inductor wrote."""
    torch.compiler.reset()
    compiled = torch.compile(model, backend=tunebench, **options)
    given, (code,) = run_and_get_code(compiled, *inputs())
    return given, code


def test_a_region_is_ours_only_where_it_is_faster_than_inductors_own_code() -> None:
    model = Gate().eval()
    with torch.no_grad():
        wanted, region = model(*inputs()), written(model)
        given, code = compiled_code(model)
        assert "RegionCall" not in code
        torch.testing.assert_close(given, wanted)
        before = state_of_regions()
        record(region, Ratio(0.9, 0.88, 0.92, 40, 0.99))
        assert state_of_regions() != before  # nothing that was compiled without the result is taken from a cache
        given, code = compiled_code(model)
        assert "RegionCall" not in code
        record(region, Ratio(1.2, 1.15, 1.25, 40, 0.99))
        given, code = compiled_code(model)
    assert code.count("RegionCall(folder=") == 2
    assert "cpp_fused" not in code
    torch.testing.assert_close(given, wanted)


def written_with_products(model: nn.Module, given: tuple[torch.Tensor, ...]) -> list[Region]:
    """Write the kernels of a model's regions that have one, and record them as faster."""
    regions = []
    for report in find_regions(model, given):
        with suppress(TunebenchError):
            write_kernel(report, regions_folder() / report.region.name)
            record(report.region, Ratio(1.2, 1.15, 1.25, 40, 0.99))
            regions.append(report.region)
    return regions


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_a_region_with_what_is_computed_behind_it(dtype: torch.dtype) -> None:
    model = Layers().to(dtype).eval()
    given = tuple(one.to(dtype) for one in inputs())
    with torch.no_grad():
        wanted, regions = model(*given), written_with_products(model, given)
        products = [one for one in regions if "torch.mm(" in one.text]
        assert len(products) == 2 and len(regions) == 3
        assert sum("torch.erf(" in one.text for one in products) == 1
        assert sorted(len(one.inputs) for one in products) == [2, 4]
        torch.compiler.reset()
        found, (code,) = run_and_get_code(torch.compile(model, backend=tunebench), *given)
        assert code.count("tunebench_inductor.region.default(") == 2
        assert "extern_kernels.mm" not in code and "extern_kernels.addmm" not in code
        torch.testing.assert_close(found, wanted)
        for region in products:
            record(region, Ratio(0.9, 0.88, 0.92, 40, 0.99))
        assert not any("torch.mm(" in one.region.text for one in find_regions(model, given))


TOLERANCES = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 0.02, "atol": 0.02}}


def made_by_three_regions(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Return what a compiled model makes, and its code, which calls three of our regions."""
    torch.compiler.reset()
    made, (code,) = run_and_get_code(torch.compile(model, backend=tunebench), x)
    assert code.count("tunebench_inductor.region.default(") == 3
    return made, code


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_is_a_region_with_what_is_computed_behind_it(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Images().to(dtype).eval(), torch.randn(2, 8, 12, 12, dtype=dtype)
    with torch.no_grad():
        wanted, regions = model(x), written_with_products(model, (x,))
        found = [one for one in regions if "torch.convolution(" in one.text]
        assert sorted(len(one.inputs) for one in found) == [3, 6, 7]
        assert all("rsqrt" in one.text for one in found if len(one.inputs) > 3)
        given_as_it_is = [one for one in found if one.outputs[0].images == "contiguous_format"]
        assert [one.inputs[0].shape for one in given_as_it_is] == [(2, 8, 12, 12)]
        made, code = made_by_three_regions(model, x)
        assert "extern_kernels.convolution" not in code
        torch.testing.assert_close(made, wanted, **TOLERANCES[dtype])


def test_a_model_that_lies_channels_last_is_served_as_it_lies() -> None:
    torch.manual_seed(0)
    model = Images().eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 12, 12).to(memory_format=torch.channels_last)
    with torch.no_grad():
        wanted, regions = model(x), written_with_products(model, (x,))
        found = [one for one in regions if "torch.convolution(" in one.text]
        assert [one.outputs[0].images for one in found] == ["channels_last"] * 3
        made, _ = made_by_three_regions(model, x)
        torch.testing.assert_close(made, wanted, **TOLERANCES[torch.float32])


def test_a_pass_of_the_users_own_stays() -> None:
    passed: list[fx.Graph] = []
    model = Layers().eval()
    with torch.no_grad(), fresh_cache():
        _, code = compiled_code(model, options={"post_grad_custom_pre_pass": passed.append})
    assert passed and "cpp_fused" in code


def test_images_lie_as_inductor_lays_them_out() -> None:
    """In a training step of a UNet it leaves them as they are."""
    torch.manual_seed(0)
    model, x = Images().eval(), torch.randn(2, 8, 12, 12)
    with torch.no_grad(), config.patch(layout_optimization=False):
        wanted, regions = model(x), written_with_products(model, (x,))
        found = [one for one in regions if one.is_product]
        assert [one.outputs[0].images for one in found] == ["contiguous_format"] * 3
        made, _ = made_by_three_regions(model, x)
        torch.testing.assert_close(made, wanted, **TOLERANCES[torch.float32])


@pytest.mark.parametrize("window", [1, 3])
def test_a_backward_reads_what_its_forward_has_laid_out_for_a_region(window: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 16, window, padding=window // 2)
    model, x = nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU(), layer), torch.randn(2, 8, 12, 12)

    def step(compiled: nn.Module) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(compiled(x).square().sum(), [*model.parameters()])

    wanted, regions = step(model), written_with_products(model, (x,))
    assert sum(one.is_product for one in regions) == 1
    torch.compiler.reset()
    found, (forward, backward) = run_and_get_code(step, torch.compile(model, backend=tunebench))
    assert "tunebench_inductor.region.default(" in forward and "convolution_backward.default(" in backward
    assert "rand_strided((2, 8, 12, 12), (1152, 1, 96, 8)" in backward  # its own example of what it is given
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


class Pixels(nn.Module):
    """Convolutions of one pixel between others: with a shortcut, and along one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.along = nn.Conv2d(8, 16, 3, padding=1), nn.Conv1d(16, 24, 1)
        self.second, self.norm = nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = torch.relu(self.norm(self.second(x)) + x)
        return functional.gelu(self.along(x.flatten(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_of_one_pixel_is_a_product(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Pixels().to(dtype).eval(), torch.randn(2, 8, 6, 6, dtype=dtype)
    with torch.no_grad():
        wanted, regions = model(x), written_with_products(model, (x,))
        products = [one for one in regions if "torch.mm(" in one.text]
        assert sorted(one.inputs[0].shape for one in products) == [(72, 16)] * 2
        assert sorted(len(one.inputs) for one in products) == [3, 7]
        assert sum("torch.convolution(" in one.text for one in regions) == 1
        made, code = made_by_three_regions(model, x)
        assert made.is_contiguous() and "extern_kernels.convolution" not in code
        torch.testing.assert_close(made, wanted, **TOLERANCES[dtype])


def test_a_convolution_of_one_pixel_stays_one_where_products_round_otherwise() -> None:
    before = state_of_regions()
    with torch.no_grad(), under({Setting.MATMUL: "bf16"}, "cpu"):
        assert state_of_regions() != before  # a graph in PyTorch's cache was compiled for other settings
        regions = [one.region.text for one in find_regions(Pixels().eval(), (torch.randn(2, 8, 6, 6),))]
    assert not any("torch.mm(" in one for one in regions) and sum("torch.convolution(" in one for one in regions) == 3


def test_products_of_a_step_of_training_are_right() -> None:
    model, given = Layers(), inputs()
    assert len([one for one in written_with_products(model, given) if "torch.mm(" in one.text]) > 2
    wanted = torch.autograd.grad(model(*given).square().sum(), list(model.parameters()))
    torch.compiler.reset()
    output, codes = run_and_get_code(torch.compile(model, backend=tunebench), *given)
    found, backward = run_and_get_code(torch.autograd.grad, output.square().sum(), list(model.parameters()))
    assert all("tunebench_inductor.region.default(" in one for one in (codes[0], backward[0]))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_step_of_training_is_right_where_regions_of_the_backward_are_ours() -> None:
    model = Gate()
    given = inputs()
    reports = find_regions(model, given)
    for report in reports:
        with suppress(TunebenchError):
            write_kernel(report, regions_folder() / report.region.name)
            record(report.region, Ratio(1.2, 1.15, 1.25, 40, 0.99))
    wanted = torch.autograd.grad(model(*given).square().sum(), list(model.parameters()))
    torch.compiler.reset()
    compiled = torch.compile(model, backend=tunebench)
    output, codes = run_and_get_code(compiled, *given)
    assert "RegionCall(folder=" in codes[0]
    found, codes = run_and_get_code(torch.autograd.grad, output.square().sum(), list(model.parameters()))
    assert "RegionCall(folder=" in codes[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_graph_of_dynamic_shapes_serves_all_of_them() -> None:
    model = Gate().eval()
    with torch.no_grad():
        record(written(model), Ratio(1.2, 1.15, 1.25, 40, 0.99))
        torch.compiler.reset()
        compiled = torch.compile(model, backend=tunebench, dynamic=True)
        for rows in (24, 7, 33):
            torch.testing.assert_close(compiled(*inputs(rows)), model(*inputs(rows)))


def test_a_tensor_keeps_the_order_in_which_it_lies_in_memory() -> None:
    class Steep(nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return functional.silu(x) * weight[:, None, None]

    given = torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last), torch.randn(6)
    with torch.no_grad():
        (report,) = find_regions(Steep(), given)
        assert report.region.inputs[0].shape == (2, 4, 5, 6)
        write_kernel(report, regions_folder() / report.region.name)
        record(report.region, Ratio(1.2, 1.15, 1.25, 40, 0.99))
        torch.compiler.reset()
        found, (code,) = run_and_get_code(torch.compile(Steep(), backend=tunebench), *given)
    assert "RegionCall(folder=" in code
    wanted = Steep()(*given)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)


def test_a_result_lies_as_its_buffer_does_whatever_strides_its_operations_leave() -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = x.transpose(1, 2) * 2 + y  # lies as x does, but for Inductor as y
            return torch.bmm(z.transpose(1, 2).reshape(1, -1, 12), weight), z.sum(-1)

    given = torch.randn(2, 5, 3, 4), torch.randn(2, 3, 5, 4), torch.randn(1, 12, 6)
    with torch.no_grad():
        for report in find_regions(Turned(), given):
            write_kernel(report, regions_folder() / report.region.name)
            record(report.region, Ratio(1.2, 1.15, 1.25, 40, 0.99))
        torch.compiler.reset()
        found, (code,) = run_and_get_code(torch.compile(Turned(), backend=tunebench), *given)
    assert code.count("RegionCall(folder=") == 2
    torch.testing.assert_close(found, Turned()(*given))


def test_a_region_at_other_sizes_has_a_study_of_its_own() -> None:
    model = Gate().eval()

    def twice(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return model(*given[:2]), model(*given[2:])

    with torch.no_grad():
        reports = find_regions(twice, (*inputs(), *inputs(8)))
    assert len({one.region.name for one in reports}) == 1
    assert sorted((one.region.inputs[0].shape, one.calls) for one in reports) == [((2, 8, 16), 2), ((2, 24, 16), 2)]


def test_the_operands_of_a_product_are_of_one_type() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 8, dtype=torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(functional.silu(x))  # Inductor has this in float32, and converts it

    with torch.no_grad():
        reports = find_regions(Embedded(), (torch.randn(4, 16, dtype=torch.bfloat16),))
    products = [one.region for one in reports if "torch.mm(" in one.region.text]
    assert [{value.dtype for value in one.inputs} for one in products] == [{torch.bfloat16}]


def test_a_softmax_of_inductors_own_is_text_of_torchs() -> None:
    graph, x = fx.Graph(), torch.randn(3, 5)
    read = graph.placeholder("x")
    made = graph.call_function(prepare_softmax_online, (read, 1))
    parts = [graph.call_function(operator.getitem, (made, part)) for part in (0, 1)]
    for node, value in zip((read, *parts), (x, *made.target(x, 1)), strict=True):
        node.meta["val"] = value
    inputs, *ends = (Value(one.name, (0, 1), tuple(one.meta["val"].shape), torch.float32) for one in (read, *parts))
    names: dict[str, Any] = {}
    exec(text_of({read: inputs}, [made, *parts], dict(zip(parts, ends, strict=True))), names)
    torch.testing.assert_close(names["Model"]()(x), tuple(one.meta["val"] for one in parts))


def test_a_product_is_asked_for_as_exactly_as_the_program_permits() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.no_grad():
        (found,) = find_regions(lambda: torch.tanh(layer(x)), ())
    region = replace(found.region, device=torch.device("cuda"))
    write_kernel(replace(found, region=region), regions_folder() / region.name)
    model = model_in(regions_folder() / region.name)
    assert not model.written_for  # how torch compiles the reference is nothing that a kernel is written for
    set_accuracy("tf32")
    for value, accuracy in (("ieee", Accuracy.TOLERANCE), ("tf32", Accuracy.TF32)):
        with under({Setting.MATMUL: value}, "cuda"):
            problem = problem_of(model, region)
        assert problem is not None and problem.accuracy is accuracy
    before = state_of_regions()
    set_accuracy("eager")
    assert state_of_regions() != before  # a graph in PyTorch's cache was compiled for another accuracy


class Heads(nn.Module):
    """Attention of heads that lie as a linear layer leaves them, or in front of their lengths, which are copied."""

    def __init__(self, *, are_behind: bool, scale: float | None = None, is_causal: bool = False) -> None:
        super().__init__()
        self.projection = nn.Linear(24, 72)
        self.are_behind, self.scale, self.is_causal = are_behind, scale, is_causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.sin(one).unflatten(-1, (3, 8)).transpose(1, 2) for one in self.projection(x).chunk(3, -1)]
        q, k, v = parts if self.are_behind else (one.contiguous() for one in parts)
        y = functional.scaled_dot_product_attention(q, k, v, scale=self.scale, is_causal=self.is_causal)
        return torch.cos(y.transpose(1, 2).flatten(2))


@pytest.fixture
def _attention_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the operation of a CPU be a region, as a GPU's is."""
    monkeypatch.setattr(attention, "ATTENTION", torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)


@pytest.mark.usefixtures("_attention_on_a_cpu")
@pytest.mark.parametrize("are_behind", [False, True])
def test_attention_is_a_region(are_behind: bool) -> None:
    model, given = Heads(are_behind=are_behind, scale=0.5).eval(), (torch.randn(2, 17, 24),)
    with torch.no_grad():
        regions = written_with_products(model, given)
        (region,) = (one for one in regions if "attention" in one.text)
        assert region.source.startswith(__file__) and "torch.permute" in region.text
        assert model_in(regions_folder() / region.name).kernel.block == "Attention"
        compiled, (code,) = run_and_get_code(torch.compile(model, backend=tunebench), *given)
        assert region.name in code and "scaled_dot_product" not in code
        torch.testing.assert_close(compiled, model(*given), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_attention_on_a_cpu")
def test_heads_that_lie_as_a_linear_layer_leaves_them_are_not_copied() -> None:
    layers, x = nn.ModuleList(nn.Linear(24, 24) for _ in range(3)).eval(), torch.randn(2, 17, 24)

    def model(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (3, 8)).transpose(1, 2) for layer in layers)
        return functional.scaled_dot_product_attention(q, k, v)

    with torch.no_grad():
        wanted, regions = model(x), written_with_products(model, (x,))
        assert sum("attention" in one.text for one in regions) == 1
        torch.compiler.reset()
        found, (code,) = run_and_get_code(torch.compile(model, backend=tunebench), x)
        assert "scaled_dot_product" not in code and "cpp_fused" not in code
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_attention_on_a_cpu")
def test_attention_that_a_block_does_not_have_is_none() -> None:
    given = torch.randn(2, 17, 24)
    with torch.no_grad():
        for model, x in (
            (Heads(are_behind=True, is_causal=True), given),
            (Heads(are_behind=True).half(), given.half()),
        ):
            assert not any("attention" in one.region.text for one in find_regions(model.eval(), (x,)))
    step = find_regions(Heads(are_behind=True), (given.requires_grad_(),))
    assert step and not any("attention" in one.region.text for one in step)
