"""Two configurations that are one run: equal machine code, and a host that looks at equal values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tunebench.tuner.build import Build, CompilerName
from tunebench.tuner.compile.machine_code import machine_code_digest
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.errors import CompilerMissingError
from tunebench.tuner.space import Configuration
from tunebench.tuner.study.identity import KnownRuns, WatchedConfiguration, run_key
from tunebench.tuner.variant import KernelSource, Variant

BUILD = Build("variant", CompilerName.CPU, "g++", b"code", "", {}, 0.1)


def test_a_watched_configuration_notes_what_is_looked_at() -> None:
    watched = WatchedConfiguration({"a": 1, "b": 2, "c": 3})
    assert (watched["a"], watched.integer("b"), watched.get("gone"), "absent" in watched) == (1, 2, None, False)
    assert watched.seen == {"a", "b", "gone", "absent"}
    assert watched == Configuration({"a": 1, "b": 2, "c": 3}) and watched.key
    assert "c" not in watched.seen
    dict(watched)
    assert "c" in watched.seen


def test_a_run_is_known_again_where_code_and_looked_at_values_agree() -> None:
    watched = WatchedConfiguration({"block": 64, "unroll": True})
    _ = watched["block"], watched.get("grid")
    runs = KnownRuns()
    assert runs.same_as(Configuration({"block": 64}), BUILD) is None
    assert runs.add(run_key(BUILD, watched), 7)
    assert runs.same_as(Configuration({"block": 64, "unroll": False}), BUILD) == 7
    assert runs.same_as(Configuration({"block": 128, "unroll": True}), BUILD) is None
    assert runs.same_as(Configuration({"block": 64, "unroll": True, "grid": 2}), BUILD) is None
    assert runs.same_as(Configuration({"block": 64, "unroll": True}), replace(BUILD, code=b"other")) is None
    assert not runs.add(run_key(BUILD, watched), 9), "the run of an earlier trial"
    assert runs.same_as(Configuration({"block": 64}), BUILD) == 7


@pytest.mark.parametrize("key", ["", "no JSON", "[]", '{"code": 1}', '{"code": "c", "host": 3}', "null"])
def test_a_key_of_another_making_is_passed_over(key: str) -> None:
    runs = KnownRuns()
    assert runs.add(key, 1)
    assert runs.same_as(Configuration({}), BUILD) is None


SOURCE = """
extern "C" __global__ void scale(float* y, const float* x) {
    #pragma unroll 1
    for (int i = 0; i < items; i += unroll ? items : 1) {
        y[threadIdx.x * items + i] = x[threadIdx.x * items + i] * 2;
    }
}
"""
TABLE = """
constexpr int table[4] = {1, 2, 3, items};
extern "C" __global__ void look_up(float* y) { y[threadIdx.x] = table[threadIdx.x & 3]; }
"""
CONSTANT = """
__constant__ int table[4] = {1, 2, 3, items};
extern "C" __global__ void look_up(float* y) { y[threadIdx.x] = table[threadIdx.x & 3]; }
"""
CALLED = """
constexpr int table[4] = {1, 2, 3, items};
__device__ __noinline__ int at(const int* values, int i) { return values[i]; }
extern "C" __global__ void look_up(float* y) { y[threadIdx.x] = at(table, threadIdx.x & 3); }
"""


def compiled(text: str, items: int, *, unroll: bool, architecture: str) -> bytes:
    constants = f"constexpr int items = {items};\nconstexpr bool unroll = {str(unroll).lower()};\n"
    source = KernelSource("kernel", text, ("scale",), {})
    try:
        return NvrtcCompiler().compile(Variant(source, constants, architecture)).code
    except CompilerMissingError:
        pytest.skip("NVRTC is not here")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_constants_that_the_code_does_not_read_are_no_part_of_it(architecture: str) -> None:
    one, other = (compiled(SOURCE, 1, unroll=unroll, architecture=architecture) for unroll in (True, False))
    assert one != other
    assert machine_code_digest(one) == machine_code_digest(other)
    several = compiled(SOURCE, 4, unroll=True, architecture=architecture)
    assert machine_code_digest(several) != machine_code_digest(one)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("text", [TABLE, CONSTANT, CALLED])
def test_data_that_the_code_reads_is_part_of_it(text: str, architecture: str) -> None:
    one, other = (compiled(text, items, unroll=True, architecture=architecture) for items in (5, 7))
    assert machine_code_digest(one) != machine_code_digest(other)


def test_any_other_binary_counts_whole() -> None:
    assert machine_code_digest(b"") != machine_code_digest(b"\x7fELF")
    assert machine_code_digest(b"abc") == machine_code_digest(b"abc")
    assert json.loads(run_key(BUILD, WatchedConfiguration({})))["code"] == machine_code_digest(b"code")
