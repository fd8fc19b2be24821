"""Stock constraints: what each admits, and that it is tested as soon as its tunables have values."""

from dataclasses import replace

import pytest

from tunebench.tuner import constraints
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.errors import UnknownNameError
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

CPU = find_device("cpu")
HOPPER = replace(CPU, architecture="sm_90", max_threads_per_block=1024, max_shared_bytes=1 << 10)
WIDTH = Tunable("width", (1, 2, 4, 8))
THREADS = Tunable("threads", (32, 512, 1024))
ROWS = Tunable("rows", (1, 2))
WAY = Tunable("way", ("plain", "fused"))


def admitted(
    constraint: Constraint, *tunables: Tunable, dtype: str = "float32", n: int = 12, device: Device = HOPPER
) -> list[tuple[object, ...]]:
    space = SearchSpace(tunables, (constraint,)).enumerate(Problem({"n": n}, dtype), device)
    return [tuple(configuration.values()) for configuration in space]


@pytest.mark.parametrize(("dtype", "widths"), [("float64", 2), ("float32", 3), ("bfloat16", 4)])
def test_a_vector_is_16_bytes_at_most(dtype: str, widths: int) -> None:
    assert len(admitted(constraints.vector_fits("width"), WIDTH, dtype=dtype)) == widths


def test_what_divides_an_axis() -> None:
    assert admitted(constraints.divides("width", "n"), WIDTH) == [(1,), (2,), (4,)]


def test_a_block_is_within_the_device_s_limit() -> None:
    assert admitted(constraints.block_fits("threads"), THREADS, device=replace(CPU, max_threads_per_block=512)) == [
        (32,),
        (512,),
    ]
    assert (1024, 2) not in admitted(constraints.block_fits("threads", "rows"), THREADS, ROWS)
    assert (512, 2) in admitted(constraints.block_fits("threads", "rows"), THREADS, ROWS)


def test_a_grid_is_within_cuda_s_limit() -> None:
    assert admitted(constraints.grid_fits("n", "width"), WIDTH, n=2**31) == [(2,), (4,), (8,)]


def test_shared_memory_is_within_the_device_s_limit() -> None:
    fits = constraints.shared_memory_fits(lambda threads, problem: threads * problem.item_bytes)
    assert admitted(fits, THREADS, dtype="float64") == [(32,)]
    assert admitted(fits, THREADS, dtype="float16") == [(32,), (512,)]


def test_a_value_for_some_dtypes_and_architectures() -> None:
    needs = constraints.needs("way", "fused", dtypes=("float32",), architectures=("sm_90",))
    assert admitted(needs, WAY) == [("plain",), ("fused",)]
    assert admitted(needs, WAY, dtype="float64") == admitted(needs, WAY, device=CPU) == [("plain",)]


def test_a_constraint_of_a_tunable_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="name in constraint 'treads_within_limit' 'treads'"):
        SearchSpace((THREADS,), (constraints.block_fits("treads"),))
