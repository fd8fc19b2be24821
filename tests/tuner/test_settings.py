"""PyTorch's settings: read through each of its spellings, put in force, and taken back."""

from __future__ import annotations

import sys

import pytest
import torch
from processes import ended

from tunebench.tuner.errors import UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.settings import (
    VALUES,
    Setting,
    apply_settings,
    described,
    in_force,
    meta_stands_for,
    parse_settings,
    require_settings,
    settings_of,
    statements,
    strict_float32,
    under,
    value_of,
)

SPELLINGS = {
    "torch.set_float32_matmul_precision('high')": "{'matmul': 'tf32'}",
    "torch.backends.cuda.matmul.allow_tf32 = True": "{'matmul': 'tf32'}",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "{'matmul': 'tf32'}",
    "torch.backends.cudnn.allow_tf32 = False": "{'convolution': 'ieee', 'recurrent': 'ieee'}",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'": "{'convolution': 'ieee'}",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False": "{'reductions': 'float32'}",
    "torch.backends.cuda.matmul.allow_fp16_accumulation = True": "{'reductions': 'float16'}",
    "torch.use_deterministic_algorithms(True)": "{'algorithms': 'deterministic'}",
    "torch.backends.cudnn.benchmark = True": "{'cudnn': 'benchmark'}",
}


@pytest.mark.slow
def test_every_spelling_is_seen_and_strict_float32_ends_it() -> None:
    """Each in a process of its own, forked from one that only imports: PyTorch refuses to mix its older and newer
    words."""
    script = """
import os, sys, torch
from tunebench.tuner.settings import Setting, in_force, strict_float32
for spelling in sys.argv[1:]:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, spelling
        continue
    exec(spelling)
    print(in_force(Setting, "cuda"))
    with strict_float32():
        inside = in_force([Setting.MATMUL], "cuda"), in_force([Setting.CONVOLUTION], "cuda")
        assert inside == ({}, {"convolution": "ieee"}), inside
    print(in_force(Setting, "cuda"))
    break
"""
    done = ended(sys.executable, "-c", script, *SPELLINGS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [found for found in SPELLINGS.values() for _ in range(2)]


def test_what_is_put_in_force_is_read_and_taken_back() -> None:
    given = {"matmul": "tf32", "algorithms": "deterministic", "reductions": "float32", "cudnn": "heuristic"}
    before = in_force(Setting, "cpu")
    with under(given, "cpu"):
        assert in_force([Setting.MATMUL, Setting.ALGORITHMS, Setting.REDUCTIONS], "cpu") == {
            name: given[name] for name in ("matmul", "algorithms", "reductions")
        }
        with strict_float32():
            assert value_of(Setting.MATMUL, "cpu") == "ieee"
        with strict_float32(convolutions=False):
            assert value_of(Setting.MATMUL, "cuda") == "ieee" and value_of(Setting.CONVOLUTION, "cuda") == "tf32"
        assert value_of(Setting.MATMUL, "cpu") == "tf32"
    assert in_force(Setting, "cpu") == before


def test_each_value_is_put_in_force_by_the_statements_that_a_program_would_write() -> None:
    for setting, values in VALUES.items():
        for value in values:
            if (setting, value) in {
                (Setting.CONVOLUTION, "bf16"),
                (Setting.RECURRENT, "bf16"),
                (Setting.MATMUL, "bf16"),
            }:
                continue
            with under({setting: value}, "cuda"):
                assert value_of(setting, "cuda") == value
            assert all(line.startswith("torch.") for line in statements({setting: value}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"matmull": "tf32"}, "unknown setting 'matmull'; did you mean matmul? (known: algorithms, convolution, cudnn"),
        ({"matmul": "high"}, "setting matmul=high: the legal values are ieee, tf32, bf16"),
    ],
)
def test_what_is_no_setting_is_one_line(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_settings(given)
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [({"matmul": "bf16"}, "cuda", "use ieee or tf32"), ({"convolution": "tf32"}, "cpu", "use ieee")],
)
def test_what_a_device_has_not_is_refused_before_anything_runs(given: dict[str, str], kind: str, said: str) -> None:
    with pytest.raises(UserError, match=f"on a device of type '{kind}': {said}"):
        require_settings(given, kind)


def test_a_problem_says_which_setting_eager_had() -> None:
    problem = Problem({"n": 1}, options={"mode": "eval", "matmul": "tf32"})
    assert settings_of(problem.options) == {"matmul": "tf32"}
    assert described(problem.options) == "matmul=tf32" and described({}) == "PyTorch's defaults"
    assert "matmul=tf32" in str(problem)


def test_tensors_without_memory_stand_for_a_device_and_its_settings() -> None:
    asked = [Setting.MATMUL, Setting.CONVOLUTION]
    assert in_force(asked, "meta") == {} and value_of(Setting.CONVOLUTION, "meta") == "tf32"
    with meta_stands_for("cpu", {"matmul": "tf32"}):
        assert in_force(asked, "meta") == {"matmul": "tf32"} and value_of(Setting.CONVOLUTION, "meta") == "ieee"
    assert torch.get_float32_matmul_precision() == "highest"


def test_settings_that_are_so_already_are_left_alone() -> None:
    before = torch.backends.cudnn.benchmark
    apply_settings({"cudnn": value_of(Setting.CUDNN, "cuda")}, "cuda")
    assert torch.backends.cudnn.benchmark is before
