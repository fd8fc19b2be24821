"""What of a Python file is Triton, and what a launch of it takes: read from the text, with nothing run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.problem import Problem
from tunebench.tuner.signature import Kind
from tunebench.tuner.space import SearchSpace, Tunable
from tunebench.tuner.triton_source import TritonSource

TEXT = '''"""A page of a user's own."""
import torch
import triton
import triton.language as tl
from tunebench import Kernel

SCALE: tl.constexpr = tl.constexpr(2.0)
rows = 8


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["n"])
def scaled(x, index: tl.pointer_type(tl.int64), y: "*fp32", n: tl.int32, eps: tl.float64, on: bool,
           block_size: tl.constexpr, form: tl.constexpr = 3):
    at = tl.program_id(0) * block_size + tl.arange(0, block_size)
    rows = tl.load(x + at, mask=at < n)
    tl.store(y + at, larger(rows * SCALE, eps), mask=at < n)


def get_inputs():
    return [torch.rand(rows)]
'''
SPACE = SearchSpace(
    (
        Tunable("block_size", (64, 128)),
        Tunable("num_warps", (4, 8)),
        Tunable("maxnreg", (0, 64)),
        Tunable("grid", (1, 2), host=True),
    )
)


def read(text: str) -> TritonSource:
    found = TritonSource.read("scaled", Path("folder/scaled.py"), text)
    assert found is not None
    return found


def test_only_what_the_functions_need_is_kept_where_it_stood() -> None:
    source = read(TEXT)
    kept = [line for line in source.text.splitlines() if line and not line.startswith(" ")]
    assert kept == [
        "import triton",
        "import triton.language as tl",
        "SCALE: tl.constexpr = tl.constexpr(2.0)",
        "@triton.jit",
        "def larger(a, b):",
        '@triton.jit(do_not_specialize=["n"])',
        'def scaled(x, index: tl.pointer_type(tl.int64), y: "*fp32", n: tl.int32, eps: tl.float64, on: bool,',
    ]
    assert source.text.splitlines().index("@triton.jit") == TEXT.splitlines().index("@triton.jit")
    assert source.file == "scaled.py"


def test_functions_that_others_call_are_not_launched() -> None:
    assert list(read(TEXT).entry_points) == ["scaled"]


def test_a_launch_takes_what_the_parameters_say() -> None:
    signature = read(TEXT).signatures("bfloat16")["scaled"]
    assert [(one.name, one.type, one.kind, one.pointee) for one in signature.parameters] == [
        ("x", "*bf16", Kind.POINTER, Kind.BFLOAT16),
        ("index", "*i64", Kind.POINTER, Kind.INT64),
        ("y", "*fp32", Kind.POINTER, Kind.FLOAT),
        ("n", "i32", Kind.INT32, None),
        ("eps", "fp64", Kind.DOUBLE, None),
        ("on", "i1", Kind.BOOL, None),
    ]


@pytest.mark.parametrize(("size", "divisible"), [(32, ["n"]), (33, [])])
def test_constants_are_what_fixes_a_variant(size: int, divisible: list[str]) -> None:
    configuration = Configuration({"block_size": 128, "num_warps": 8, "maxnreg": 0, "grid": 2})
    fixed = read(TEXT).constants(SPACE, configuration, Problem({"n": size}, "float32"), {}, {})
    assert json.loads(fixed) == {
        "dtype": "float32",
        "options": {"num_warps": 8},
        "functions": {
            "scaled": {
                "types": {"x": "*fp32", "index": "*i64", "y": "*fp32", "n": "i32", "eps": "fp64", "on": "i1"},
                "constants": {"block_size": 128},
                "divisible": divisible,
            }
        },
    }


def test_constants_may_be_compiled_axes_and_options() -> None:
    text = TEXT.replace("form: tl.constexpr = 3", "features: tl.constexpr, mode_option: tl.constexpr")
    source = read(text)
    source.require_constants(SPACE, ["features", "mode_option"], alone=True)
    configuration = Configuration({"block_size": 64, "num_warps": 4, "maxnreg": 64, "grid": 1})
    fixed = json.loads(source.constants(SPACE, configuration, Problem({"n": 1}), {"features": 7}, {"mode": "train"}))
    assert fixed["functions"]["scaled"]["constants"] == {"block_size": 64, "features": 7, "mode_option": "train"}
    assert fixed["options"] == {"num_warps": 4, "maxnreg": 64}


def test_a_comment_is_no_other_source_and_a_called_function_is() -> None:
    source = read(TEXT)
    assert (
        read(TEXT.replace("    return tl.maximum", "    # the larger\n    return tl.maximum")).digest == source.digest
    )
    assert read(TEXT.replace("rows = 8", "rows = 9")).digest == source.digest
    assert read(TEXT.replace("tl.maximum(a, b)", "tl.minimum(a, b)")).digest != source.digest
    assert read(TEXT.replace("constexpr(2.0)", "constexpr(3.0)")).digest != source.digest


def test_a_file_without_triton_is_none() -> None:
    assert TritonSource.read("scaled", Path("scaled.py"), "import torch\n\ndef f(x):\n    return x\n") is None
    assert TritonSource.read("scaled", Path("scaled.py"), "def f(:\n") is None


WRONG = {
    "another file's function": (
        TEXT.replace("SCALE: tl.constexpr = tl.constexpr(2.0)", "from .other import SCALE"),
        r"folder/scaled.py:7: a Triton function uses SCALE of another file: write it in this one",
    ),
    "autotune": (
        TEXT.replace("@triton.jit(", "@triton.autotune(configs=[], key=[])\n@triton.jit("),
        r"folder/scaled.py:16: @triton.autotune: tunables take its place",
    ),
    "a type that is none": (
        TEXT.replace("n: tl.int32", "n: tl.int33"),
        r"folder/scaled.py:17: parameter 'n: tl.int33' cannot be given an argument: annotate it as a name of triton",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_served_is_one_line(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(KernelFolderError, match=message):
        read(text)


def test_a_constant_without_a_value_is_refused() -> None:
    space = SearchSpace((Tunable("num_warps", (4, 8)),))
    with pytest.raises(
        KernelFolderError, match=r"scaled.py:18: constexpr 'block_size' of scaled has no value: .*num_warps"
    ):
        read(TEXT).require_constants(space, [], alone=True)


def test_a_tunable_that_is_no_constant_is_refused_unless_another_source_may_have_it() -> None:
    space = SearchSpace((Tunable("block_size", (64,)), Tunable("blok", (1, 2))))
    with pytest.raises(KernelFolderError, match=r"tunable 'blok': scaled.py has no constexpr of that name .*host=True"):
        read(TEXT).require_constants(space, [], alone=True)
    read(TEXT).require_constants(space, [], alone=False)
