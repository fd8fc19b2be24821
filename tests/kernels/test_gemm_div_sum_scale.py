"""gemm_div_sum_scale on the CPU: every way to sum against float64, kept sums, and the reference's answer elsewhere."""

import copy

import pytest
import torch
from five_models import pin
from torch import nn

from tunebench.kernels.gemm_div_sum_scale.model import SPACE, ModelNew
from tunebench.kernels.gemm_div_sum_scale.reference import Model
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Problem

CPU = find_device("cpu")

PASSES = {"block_size": 128, "strip_threads": 32, "rows_in_flight": 4, "load_hint": "normal", "waves": 1}
ROWS = {"vector_width": 4, "row_threads": 128, "rows_per_thread": 2, "vectors_in_flight": 1}
SEVERAL = {**PASSES, "early_launches": False}
STRIPS = {name: value for name, value in PASSES.items() if name != "waves"}
CONFIGURATIONS = [
    Configuration({"algorithm": "column_sums", "join": "kernel", **SEVERAL, **ROWS}),
    Configuration({"algorithm": "column_sums", "join": "dot", **SEVERAL, **ROWS, "vectors_in_flight": 4}),
    Configuration({"algorithm": "column_sums", "join": "last_block", **SEVERAL, **ROWS, "rows_in_flight": 8}),
    Configuration({"algorithm": "column_sums", "join": "fused", **PASSES, **ROWS, "row_threads": 32}),
    Configuration({"algorithm": "column_sums", "join": "fused", **PASSES, **ROWS, "strip_threads": 128, "waves": 2}),
    Configuration({"algorithm": "column_sums", "join": "kernel", **SEVERAL, **ROWS, "strip_threads": 128, "waves": 2}),
    Configuration({"algorithm": "strips", **STRIPS, "vector_width": 4}),
    Configuration({"algorithm": "strips", **STRIPS, "vector_width": 1, "strip_threads": 128, "rows_in_flight": 16}),
    Configuration({"algorithm": "gemm", **ROWS, "row_threads": 32}),
]
FROZEN = Configuration({"algorithm": "column_sums", **ROWS, "row_threads": 32})


def pair(inputs: int, hidden: int, scale: float = 1.5) -> tuple[Model, ModelNew]:
    torch.manual_seed(3)
    reference = Model(inputs, hidden, scale)
    tuned = ModelNew(inputs, hidden, scale)
    tuned.load_state_dict(reference.state_dict())
    return reference, tuned


def exact(reference: Model, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = copy.deepcopy(reference).double()(x.double())
    return output


def relative(output: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(output.double() - wanted) / torch.linalg.vector_norm(wanted))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=lambda c: f"{c['algorithm']}-{c.get('join')}-{c.get('row_threads')}"
)
def test_every_way_and_size(configuration: Configuration, width: int) -> None:
    configuration = Configuration({**configuration, "vector_width": width})
    for rows, inputs, hidden in ((1, 4, 4), (3, 132, 76), (37, 1028, 132)):
        reference, tuned = pair(inputs + (width == 1), hidden + (width == 1))
        x = torch.randn(rows, inputs + (width == 1))
        with torch.no_grad():
            pin(tuned, configuration, x)
            output = tuned(x)
            assert relative(output, exact(reference, x)) < 2e-6
            assert output.stride() == reference(x).stride()
            assert torch.equal(output, tuned(x))


def test_memory_that_is_not_aligned_or_not_contiguous() -> None:
    reference, tuned = pair(132, 76)
    tuned.weight = nn.Parameter(torch.cat([torch.zeros(1), reference.weight.detach().flatten()])[1:].view(76, 132))
    memory = torch.randn(11, 140)
    for configuration in (CONFIGURATIONS[0], CONFIGURATIONS[3]):
        for x in (memory[:, 1:133], memory[:, 4:136], memory[0:1, :132].expand(6, 132), memory[::2, 3:135]):
            with torch.no_grad():
                pin(tuned, configuration, x)
                assert relative(tuned(x), exact(reference, x)) < 2e-6


def test_float64() -> None:
    reference, tuned = pair(66, 31)
    x = torch.randn(9, 66, dtype=torch.float64)
    with torch.no_grad():
        tuned.double()
        pin(tuned, Configuration({**CONFIGURATIONS[0], "vector_width": 2}), x)
        assert relative(tuned(x), exact(reference, x)) < 1e-14


def test_the_sums_are_no_less_accurate_than_the_product() -> None:
    reference, tuned = pair(2048, 1024)
    torch.manual_seed(5)
    for configuration in CONFIGURATIONS[:4]:
        x = torch.rand(16, 2048)
        with torch.no_grad():
            pin(tuned, configuration, x)
            wanted = exact(reference, x)
            assert relative(tuned(x), wanted) <= relative(reference(x), wanted)


def test_a_vector_divides_the_features() -> None:
    for features, widths in ((8192, {1, 2, 4}), (6, {1, 2}), (7, {1})):
        problem = Problem({"rows": 5, "in_features": features, "hidden": 8}, "float32", {"mode": "eval"})
        assert {configuration["vector_width"] for configuration in SPACE.enumerate(problem, CPU)} == widths


def test_how_to_sum_matters_only_where_each_call_sums() -> None:
    axes = {"rows": 1024, "in_features": 8192, "hidden": 8192}
    each_call = SPACE.enumerate(Problem(axes, "float32", {"mode": "eval"}), CPU)
    frozen = SPACE.enumerate(Problem(axes, "float32", {"mode": "frozen"}), CPU)
    assert {configuration["algorithm"] for configuration in each_call} == {"column_sums", "strips", "gemm"}
    assert {configuration.get("join") for configuration in each_call} == {"kernel", "dot", "last_block", "fused", None}
    assert {configuration["algorithm"] for configuration in frozen} == {"column_sums"}
    assert not any("join" in configuration for configuration in frozen)


def test_kept_sums_follow_the_weight() -> None:
    reference, tuned = pair(132, 76)
    tuned.freeze()
    x = torch.randn(37, 132)
    with torch.no_grad():
        pin(tuned, FROZEN, x)
        first = tuned(x)
        assert relative(first, exact(reference, x)) < 2e-6
        tuned.weight.data.mul_(2.0)  # not counted by PyTorch: shows that the sums are kept
        assert torch.equal(tuned(x), first)
        for change in (
            lambda model: model.weight.mul_(3.0),
            lambda model: setattr(model, "weight", nn.Parameter(torch.randn_like(model.weight))),
            lambda model: setattr(model, "scaling_factor", -0.25),
        ):
            change(tuned)
            reference.weight = nn.Parameter(tuned.weight.clone())
            reference.scaling_factor = tuned.scaling_factor
            assert relative(tuned(x), exact(reference, x)) < 2e-6


def test_each_call_reads_the_weight_as_it_is() -> None:
    reference, tuned = pair(132, 76)
    x = torch.randn(37, 132)
    with torch.no_grad():
        pin(tuned, CONFIGURATIONS[0], x)
        before = tuned(x)
        tuned.weight.data.mul_(-2.0)
        assert relative(tuned(x), -2.0 * before.double()) < 1e-6
        assert relative(before, exact(reference, x)) < 2e-6


@pytest.mark.parametrize("x", [torch.randn(12), torch.randn(2, 5, 12)], ids=["vector", "3-d"])
def test_any_tensor_gets_the_reference_answer(x: torch.Tensor) -> None:
    reference, tuned = pair(12, 7)
    if x.dim() == 1:  # a sum along an axis that is not there
        for model in (reference, tuned):
            with pytest.raises(IndexError):
                model(x)
        return
    wanted, output = reference(x), tuned(x)
    torch.testing.assert_close(output, wanted)
    assert output.stride() == wanted.stride()
    assert output.requires_grad == wanted.requires_grad


@pytest.mark.parametrize("configuration", CONFIGURATIONS[:4], ids=lambda c: str(c["join"]))
def test_nvrtc_compiles_for_hopper_without_spills(nvrtc: NvrtcCompiler, configuration: Configuration) -> None:
    problem = Problem({"rows": 1024, "in_features": 8192, "hidden": 8192}, "float32", {"mode": "eval"})
    build = nvrtc.compile(ModelNew.kernel.variant(configuration, problem, "sm_90"))
    assert set(build.figures) == set(ModelNew.kernel.source.entry_points)
    assert not any(figures.spill_stores for figures in build.figures.values())
