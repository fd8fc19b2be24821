"""Products of matrices by the tuned models, and what those from parts promise on any device: who joins names its own.

Errors are against float64, relative to the sum of the products' magnitudes, which is what rounding scales with.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tunebench.kernels.gemm_scale_bn.model import ModelNew as ScaleBn
from tunebench.kernels.gemm_scale_bn.reference import Model as ScaleBnReference
from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew as Sigmoid
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device, DeviceKind, device_of, find_device
from tunebench.tuner.gate.memory import PoisonedMemory
from tunebench.tuner.problem import Accuracy

FP16: Mapping[str, Value] = {
    "product": "parts",
    "part_type": "fp16",
    "corrections": "half",
    "split_threads": 256,
    "block_size": 256,
}
BF16: Mapping[str, Value] = {**FP16, "part_type": "bf16"}
E4M3: Mapping[str, Value] = {**FP16, "corrections": "e4m3"}
VARIANTS: Mapping[str, Mapping[str, Value]] = {
    "fp16 in one": {**FP16, "pieces": 1, "vector_width": 4},
    "fp16 in 4 pieces": {**FP16, "pieces": 4, "vector_width": 2},
    "bf16 in one": {**BF16, "pieces": 1, "vector_width": 1, "in_place": True},
    "bf16 in 16 pieces": {**BF16, "pieces": 16, "vector_width": 4, "in_place": True},
    "e4m3 in one": {**E4M3, "pieces": 1, "correction_sums": "fp32", "vector_width": 4, "in_place": True},
    "e4m3 in 2 pieces": {**E4M3, "pieces": 2, "correction_sums": "bf16", "vector_width": 2, "in_place": True},
    "int8 in one": {**FP16, "corrections": "int8", "pieces": 1, "vector_width": 4, "in_place": True},
    "rounded": {**FP16, "corrections": "none", "pieces": 1, "vector_width": 4, "in_place": True},
    "int8 in 4 pieces": {**FP16, "corrections": "int8", "pieces": 4, "vector_width": 1},
}
PRECISE = VARIANTS["fp16 in 4 pieces"]
SIZES = [(1, 1, 1), (3, 130, 33), (40, 57, 100), (65, 31, 1001), (2, 200, 8), (65, 48, 1001), (19, 144, 33)]
"""Rows, features, depth: the last two are such that libraries for GPUs multiply eight-bit matrices of them."""

each_variant = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)


def bound_of(values: Mapping[str, Value]) -> float:
    """Two parts hold 22 bits in fp16, 16 in bf16, one in fp16 11; tensor cores truncate their sums.

    Of the 12th bit and what follows, corrections hold four bits of each factor in e4m3 and seven in whole numbers.
    """
    if values["part_type"] == "bf16":
        return 3e-5
    return {"half": 3e-6, "e4m3": 6e-5, "int8": 3e-5, "none": 1e-3}[str(values["corrections"])]


def pin(model: TunedModule, x: torch.Tensor, values: Mapping[str, Value], *others: torch.Tensor) -> None:
    """Run the model under the valid configuration that has these values, for a program that permits TF32."""
    problem = model.problem(x, *others)
    assert problem is not None
    problem = problem.at(Accuracy.TF32)
    device, kernel = device_of(x.device), model.kernel
    configuration = kernel.space.choose(values, problem, device)
    model.pin(build_plan(kernel, configuration, problem, device, compiler_for(device)))


def fictional(architecture: str) -> Device:
    """A GPU of that architecture that is not here."""
    return replace(find_device("cpu"), kind=DeviceKind.CUDA, architecture=architecture, max_shared_bytes=232448)


def product_model(x: torch.Tensor, weight: torch.Tensor, values: Mapping[str, Value], *, frozen: bool = False) -> Any:
    """A model of x · weightᵀ: gemm_sigmoid_residual without bias, its factor 0."""
    features, depth = weight.shape
    model = Sigmoid(depth, features, 0.0).to(weight.device)
    model.gemm.bias = None  # type: ignore[assignment]
    model.gemm.weight = nn.Parameter(weight)
    if frozen:
        model.freeze()
    pin(model, x, values)
    return model


def product(x: torch.Tensor, weight: torch.Tensor, values: Mapping[str, Value]) -> torch.Tensor:
    return run(product_model(x, weight, values), x)


@torch.no_grad()
def run(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(*inputs)
    return output


def error(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """Largest error relative to the sum of the products' magnitudes."""
    wanted = x.double() @ weight.double().T
    size = x.double().abs() @ weight.double().abs().T
    return float(((found.double() - wanted).abs() / size.clamp_min(torch.finfo(torch.float32).tiny)).max())


def scale_bn_pair(device: str, inputs: int = 33, features: int = 20) -> tuple[Any, Any]:
    """A reference that has lived a little, and a tuned model with its state."""
    torch.manual_seed(3)
    reference = ScaleBnReference(inputs, features, (features,))
    with torch.no_grad():
        reference.bn.weight.uniform_(0.5, 2.0)
        reference.bn.bias.normal_()
        for statistic in (reference.bn.running_mean, reference.bn.running_var):
            assert statistic is not None
            statistic.uniform_(0.5, 2.0)
    tuned = ScaleBn(inputs, features, (features,))
    tuned.load_state_dict(reference.state_dict())
    return reference.to(device).eval(), tuned.to(device).eval()


def in_place(model: Any) -> None:
    with torch.no_grad():
        model.gemm.weight.mul_(3.0)


def replaced(model: Any) -> None:
    model.gemm.weight = nn.Parameter(torch.full_like(model.gemm.weight, 0.25))


def optimiser_step(model: Any) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()


def state_loaded(model: Any) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})


def statistics_moved(model: Any) -> None:
    """By a step of the reference's operations."""
    frozen = getattr(model, "is_frozen", False)
    model.train()
    model(torch.linspace(-2, 5, 6 * model.gemm.in_features, device=model.scale.device).view(6, -1))
    model.eval()
    if frozen:
        model.freeze()


def variance_in_place(model: Any) -> None:
    model.bn.running_var.mul_(3.0)


def other_eps(model: Any) -> None:
    model.bn.eps = 2.0


def linear_bias_in_place(model: Any) -> None:
    with torch.no_grad():
        model.gemm.bias.add_(1.0)


def no_linear_bias(model: Any) -> None:
    model.gemm.bias = None


def scale_negated(model: Any) -> None:
    with torch.no_grad():
        model.scale.mul_(-1.0)


CHANGES: tuple[Callable[[Any], object], ...] = (in_place, replaced, optimiser_step, state_loaded)
"""Of any model with a linear layer."""

NORM_CHANGES = (*CHANGES, variance_in_place, statistics_moved, other_eps, linear_bias_in_place, no_linear_bias)
NORM_CHANGES = (*NORM_CHANGES, scale_negated)


class PartsContract:
    """The tests; a subclass says on which device."""

    device: ClassVar[str]

    def matrices(self, rows: int, features: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, depth, generator=generator)
        return x.to(self.device), torch.randn(features, depth, generator=generator).to(self.device)

    @pytest.mark.slow
    @each_variant
    @pytest.mark.parametrize("size", SIZES, ids=str)
    def test_sizes(self, size: tuple[int, int, int], values: Mapping[str, Value]) -> None:
        if self.device == "cuda" and values.get("corrections", "half") != "half" and size[1] % 16:
            pytest.skip("torch multiplies no such matrices of eight bits")
        x, weight = self.matrices(*size)
        found = product(x, weight, values)
        assert error(found, x, weight) < bound_of(values)
        assert torch.equal(found, product(x, weight, values))

    @each_variant
    def test_memory_that_does_not_begin_its_allocation(self, values: Mapping[str, Value]) -> None:
        x, weight = self.matrices(40, 48, 256)
        expected = product(x, weight, values)
        with PoisonedMemory(0xFF):
            assert torch.equal(product(x, weight, values), expected)

    @each_variant
    @pytest.mark.parametrize(("x_size", "w_size"), [(1e-20, 1e20), (1e20, 1e-18), (1e-10, 1e-10), (1e10, 1.0)])
    def test_magnitudes(self, x_size: float, w_size: float, values: Mapping[str, Value]) -> None:
        x, weight = self.matrices(40, 48, 256)
        x, weight = x * x_size, weight * w_size
        assert error(product(x, weight, values), x, weight) < bound_of(values)

    @each_variant
    def test_rows_of_very_different_magnitudes(self, values: Mapping[str, Value]) -> None:
        x, weight = self.matrices(41, 32, 128)
        x *= torch.logspace(-20, 20, 41, device=self.device)[:, None]
        weight *= torch.logspace(15, -15, 32, device=self.device)[:, None]
        assert error(product(x, weight, values), x, weight) < bound_of(values)

    @each_variant
    def test_elements_of_one_row_of_very_different_magnitudes(self, values: Mapping[str, Value]) -> None:
        x, weight = self.matrices(20, 32, 128)
        x *= torch.logspace(0, -30, 128, device=self.device)
        weight *= torch.logspace(0, -30, 128, device=self.device)
        assert error(product(x, weight, values), x, weight) < bound_of(values)

    @each_variant
    def test_what_is_not_finite_and_what_is_huge_or_tiny(self, values: Mapping[str, Value]) -> None:
        x, weight = self.matrices(70, 80, 33)
        x[3, 5], x[7, 0], x[9, 32], weight[11, 2], weight[75, 4] = torch.inf, torch.nan, 3e38, -torch.inf, 1e-44
        x[12, 3], x[12, 4] = torch.inf, -torch.inf
        weight[20], x[30] = 0.0, 0.0
        x[31] *= 1e-42
        found, strict = product(x, weight, values), x @ weight.T
        bound = 100 * bound_of(values)
        torch.testing.assert_close(found, strict, rtol=bound, atol=bound, equal_nan=True)

    def test_operands_off_their_alignment_and_transposed(self) -> None:
        depth = 101
        memory = torch.randn(20 * depth + 1, device=self.device)
        x, weight = memory[1:].view(20, depth), torch.randn(30 * depth + 3, device=self.device)[3:].view(30, depth)
        assert error(product(x, weight, PRECISE), x, weight) < 3e-6
        x, weight = (torch.randn(96, count, device=self.device).T for count in (20, 30))
        assert error(product(x, weight, PRECISE), x, weight) < 3e-6

    @pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
    @pytest.mark.parametrize("frozen", [False, True], ids=["eval", "frozen"])
    def test_a_change_of_the_weight_changes_the_next_output(self, *, frozen: bool, change: Any) -> None:
        x, weight = self.matrices(9, 40, 64)
        model = product_model(x, weight, PRECISE, frozen=frozen)
        for _ in range(2):
            change(model)
            for _ in range(2):
                assert error(run(model, x), x, model.gemm.weight.detach()) < 3e-6

    def test_unfrozen_an_edit_through_data_is_seen_and_frozen_by_freezing_again(self) -> None:
        x, weight = self.matrices(9, 40, 64)
        model = product_model(x, weight, PRECISE)
        for frozen in (False, True):
            if frozen:
                model.freeze()
            run(model, x)
            model.gemm.weight.data.mul_(-2.0)
            if frozen:
                model.freeze()
            assert error(run(model, x), x, model.gemm.weight.detach()) < 3e-6

    def test_rows_of_a_kept_weight_that_parts_cannot_hold_are_repaired_in_every_call(self) -> None:
        x, weight = self.matrices(9, 40, 64)
        weight[3, 5], weight[4, 6] = torch.inf, 1e38
        model = product_model(x, weight, PRECISE, frozen=True)
        for _ in range(2):
            torch.testing.assert_close(run(model, x), x @ weight.T, rtol=1e-4, atol=1e-4, equal_nan=True)

    @pytest.mark.parametrize("frozen", [False, True], ids=["eval", "frozen"])
    def test_inference_mode(self, *, frozen: bool) -> None:
        with torch.inference_mode():
            x, weight = self.matrices(9, 40, 64)
            model = product_model(x, weight, PRECISE, frozen=frozen)
            run(model, x)
            model.gemm.weight.mul_(2.0)
            assert error(run(model, x), x, model.gemm.weight) < 3e-6

    @pytest.mark.parametrize("frozen", [False, True], ids=["eval", "frozen"])
    @pytest.mark.parametrize("change", NORM_CHANGES, ids=lambda change: change.__name__)
    @pytest.mark.parametrize("made", ["fp32", "parts"])
    def test_a_normalising_weight_follows_every_change(self, made: str, change: Any, *, frozen: bool) -> None:
        reference, tuned = scale_bn_pair(self.device)
        if frozen:
            tuned.freeze()
        x = torch.randn(11, 33, device=self.device)
        values = {"normalisation": "weight", **(PRECISE if made == "parts" else {"product": "fp32"})}
        pin(tuned, x, values)
        before = assert_as_float64(reference, tuned, x)
        tuned.pin(None)
        change(reference)
        change(tuned)
        pin(tuned, x, values)
        for _ in range(2):
            after = assert_as_float64(reference, tuned, x)
        assert not torch.allclose(before, after)

    @pytest.mark.parametrize("made", ["fp32", "parts"])
    def test_what_a_normalising_weight_does_with_extremes(self, made: str) -> None:
        reference, tuned = scale_bn_pair(self.device)
        x = torch.randn(30, 33, device=self.device)
        x[3, 5], x[7, 0], x[9, 32], x[10] = torch.inf, torch.nan, 1e37, 0.0
        x[11, 1], x[11, 2] = torch.inf, -torch.inf
        x[12] *= 1e-42
        with torch.no_grad():
            for model in (reference, tuned):
                model.scale[1] = 0.0
                model.bn.weight[2] = 0.0
                model.bn.running_var[3] = 0.0
                model.bn.running_var[4] = 1e30
                model.scale[5] = 1e-20
                model.scale[6] = 1e10
                model.gemm.weight[7] = 0.0
        values = {"normalisation": "weight", **(PRECISE if made == "parts" else {"product": "fp32"})}
        pin(tuned, x, values)
        found, wanted = run(tuned, x), run(reference, x)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)

    @pytest.mark.parametrize("values", [PRECISE, {**VARIANTS["fp16 in one"], "normalisation": "folded"}], ids=str)
    @pytest.mark.parametrize("rows", [2, 37])
    def test_training(self, rows: int, values: Mapping[str, Value]) -> None:
        reference, tuned = (model.train() for model in scale_bn_pair(self.device))
        x = torch.randn(rows, 33, device=self.device)
        x[1] *= 1e6
        pin(tuned, x, values)
        exact = copy.deepcopy(reference).double()
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(tuned(x).double(), exact(x.double()), rtol=1e-4, atol=1e-4)
        for name, value in tuned.state_dict().items():
            torch.testing.assert_close(value.double(), exact.state_dict()[name].double(), rtol=1e-4, atol=1e-5)

    def test_a_batch_that_is_not_finite_in_training(self) -> None:
        reference, tuned = (model.train() for model in scale_bn_pair(self.device))
        x = torch.randn(9, 33, device=self.device)
        x[4, 4] = torch.inf
        pin(tuned, x, PRECISE)
        torch.testing.assert_close(run(tuned, x), run(reference, x), equal_nan=True)


def assert_as_float64(reference: Any, tuned: Any, x: torch.Tensor) -> torch.Tensor:
    wanted = run(copy.deepcopy(reference).double(), x.double())
    found = run(tuned, x)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    return found
