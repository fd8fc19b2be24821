"""Attention on the CPU: sizes, layouts, what is not finite, and what is left to PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attentions import (
    CONFIGURATIONS,
    PAIRS,
    SIZES,
    Reference,
    TunedAttention,
    error,
    found,
    found_by_tiles,
    tensors,
)
from one_file import load
from parts_contract import fictional
from torch import nn

from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.problem import Problem

MODEL = """
def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)
"""


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("reference", "tuned"), PAIRS)
def test_sizes_and_layouts(size: tuple[int, int, int, int, int], reference: type[nn.Module], tuned: Any) -> None:
    given = tensors(size, "cpu", heads=tuned.heads)
    for way in (found, found_by_tiles):
        made = way(tuned(), given, CONFIGURATIONS[sum(size) % 2])
        assert error(made, reference(), given) < 2e-5
        assert made.stride() == reference()(*given).stride()


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite_stays_where_it_is(value: float) -> None:
    for place in range(3):
        given = tensors((1, 2, 37, 45, 24), "cpu")
        given[place][0, 1, 30, 5] = value
        made, wanted = found(TunedAttention(), given, CONFIGURATIONS[0]), Reference()(*(one.double() for one in given))
        torch.testing.assert_close(made.double(), wanted, equal_nan=True, atol=2e-5, rtol=1e-4)


def test_magnitudes() -> None:
    for size in (1e-38, 1e-30, 1e25):
        given = tensors((1, 2, 20, 40, 16), "cpu")
        given[2] *= size
        made, wanted = found_by_tiles(TunedAttention(), given, CONFIGURATIONS[0]), Reference()(*given)
        torch.testing.assert_close(made, wanted, atol=2e-5 * size, rtol=1e-4)


def test_what_pytorchs_kernel_does_not_take_is_left_to_pytorch() -> None:
    model = TunedAttention()
    for size in (132, 18):
        assert model.problem(*tensors((1, 1, 4, 4, size), "cpu")) is None
        assert model.reason == f"heads have {size} elements: the kernel is for multiples of 4 up to 128"
    q, k, v = tensors((2, 2, 4, 4, 8), "cpu")
    assert model.problem(q, k, v) is not None
    assert model.problem(q.half(), k.half(), v.half()) is None
    for strange in (v.mT.contiguous().mT, torch.cat((v, v[..., :3]), -1)[..., :8], v[:1].expand_as(v)):
        assert model.problem(q, k, strange) is None


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ('tensors = ("q", "k", "k")', r"tensors: it is .*: give three arguments of forward \(q, k, v\)"),
        ('tensors = ("q", "k")', r"tensors: it is \('q', 'k'\): give three arguments of forward \(q, k, v\)"),
        ('tensors = ("q", "k", "v")\nheads = 3', "heads: it is 3: give 1, or 2 where the length stands in front of it"),
        ('tensors = ("q", "k", "v")\nscale = "x"', "scale: it is 'x': give a number, or None for"),
    ],
)
def test_wrong_attributes_are_told(tmp_path: Path, block: str, message: str) -> None:
    with pytest.raises(KernelFolderError, match=message):
        load(tmp_path / "wrong.py", "blocks.Attention", MODEL, block)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "values"),
    [
        (40, {"warps": 8, "row_tiles": 2, "tile_keys": 64, "score_parts": 3}),
        (64, {"warps": 4, "row_tiles": 1, "tile_keys": 64, "score_parts": 2}),
        (128, {"warps": 8, "row_tiles": 1, "tile_keys": 16, "score_parts": 3}),
    ],
)
def test_it_compiles_for_cuda_without_spills(nvrtc: NvrtcCompiler, size: int, values: Mapping[str, Value]) -> None:
    kernel = TunedAttention.kernel
    axes = {"batch": 8, "heads": 8, "queries": 512, "keys": 512, "size": size}
    problem, device = Problem(axes, "float32", {"mode": "eval"}), fictional("sm_90")
    build = nvrtc.compile(kernel.variant(kernel.space.choose(values, problem, device), problem, "sm_90"))
    assert not build.figures["attention"].spill_loads
