"""scalar_mul on the CPU: right for every size, alignment and configuration, and the reference's answer elsewhere."""

import random

import pytest
import torch

from tunebench.kernels.scalar_mul.model import ModelNew
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Problem

CPU = find_device("cpu")
SPACE = ModelNew.kernel.space
SIZES = (1, 2, 3, 4, 5, 63, 64, 255, 1023, 4096, 32771)


def plan_for(configuration: Configuration, problem: Problem) -> Plan:
    return build_plan(ModelNew.kernel, configuration, problem, CPU, compiler_for(CPU))


def sample(count: int, dtype: str = "float32") -> list[Configuration]:
    space = SPACE.enumerate(Problem({"elements": 1}, dtype), CPU)
    return [space[number] for number in random.Random(7).sample(range(len(space)), count)]


@pytest.mark.slow
@pytest.mark.parametrize("configuration", sample(24), ids=str)
def test_every_size_and_offset(configuration: Configuration) -> None:
    model = ModelNew()
    for size in SIZES:
        memory = torch.randn(size + 3)
        for offset in (0, 1, 2, 3):
            A = memory[offset : offset + size]
            problem = model.problem(A, 3.14)
            assert problem is not None
            model.pin(plan_for(configuration, problem))
            assert torch.equal(model(A, 3.14), A * 3.14), (size, offset)


@pytest.mark.parametrize("configuration", sample(6, "float64"), ids=str)
def test_float64(configuration: Configuration) -> None:
    model = ModelNew()
    A = torch.randn(1009, dtype=torch.float64)
    problem = model.problem(A, 0.1)
    assert problem is not None
    assert problem.dtype == "float64"
    model.pin(plan_for(configuration, problem))
    assert torch.equal(model(A, 0.1), A * 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "configuration"),
    [(dtype, configuration) for dtype in ("float16", "bfloat16") for configuration in sample(4, dtype)],
    ids=str,
)
def test_every_value_of_a_half_type(dtype: str, configuration: Configuration) -> None:
    model = ModelNew()
    memory = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))
    for offset, s in ((0, 3.14), (1, 1.0), (2, 1e-3), (3, 0.5), (5, 1e5)):
        A = memory[offset:]
        problem = model.problem(A, s)
        assert problem is not None and problem.dtype == dtype
        model.pin(plan_for(configuration, problem))
        found, exact = model(A, s), (A.double() * torch.tensor(s, dtype=torch.float32)).float().to(A.dtype)
        assert torch.equal(found.isnan(), exact.isnan())
        assert torch.equal(found[~exact.isnan()].view(torch.int16), exact[~exact.isnan()].view(torch.int16))


@pytest.mark.parametrize(("dtype", "legal"), [("float64", {1, 2}), ("float32", {1, 2, 4}), ("bfloat16", {1, 2, 4, 8})])
def test_a_vector_is_at_most_16_bytes(dtype: str, legal: set[int]) -> None:
    widths = {configuration["vector_width"] for configuration in SPACE.enumerate(Problem({"elements": 9}, dtype), CPU)}
    assert widths == legal


def test_waves_do_not_multiply_builds() -> None:
    problem = Problem({"elements": 9})
    space = SPACE.enumerate(problem, CPU)
    digests = {ModelNew.kernel.variant(configuration, problem, "sm_90").digest for configuration in space}
    assert len(space) == 2100
    assert len(digests) == 840


@pytest.mark.parametrize(
    "A",
    [
        torch.randn(6, 7).t(),
        torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last),
        torch.randn(8, 8)[:, ::2],
        torch.randn(5, 1).expand(5, 4),
        torch.randn(0, 4),
        torch.tensor(2.0),
        torch.randn(9).half(),
        torch.randn(9).bfloat16(),
        torch.arange(9),
        torch.randn(9, dtype=torch.complex64),
        torch.tensor([1e-40, float("inf"), float("nan"), -0.0, 3e38]),
    ],
    ids=[
        "transposed",
        "channels_last",
        "strided",
        "expanded",
        "empty",
        "0-d",
        "half",
        "bfloat16",
        "int",
        "complex",
        "odd",
    ],
)
def test_any_tensor_gets_the_reference_answer(A: torch.Tensor) -> None:
    model = ModelNew()
    for s in (3.14, 2, -0.0, 1e300, float("nan")):
        wanted, got = A * s, model(A, s)
        assert torch.equal(got.nan_to_num(7.0), wanted.nan_to_num(7.0))
        assert torch.equal(torch.isnan(got), torch.isnan(wanted))
        assert (got.dtype, got.shape, got.stride(), got.device) == (
            wanted.dtype,
            wanted.shape,
            wanted.stride(),
            wanted.device,
        )


def test_a_tensor_of_another_kind_of_scalar() -> None:
    A, s = torch.randn(5, 6), torch.tensor(2.5)
    assert torch.equal(ModelNew()(A, s), A * s)
