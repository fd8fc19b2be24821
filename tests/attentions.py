"""Attention by the block beside PyTorch's in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from parts_contract import pin, run
from torch import nn
from torch.nn import functional

from tunebench import blocks
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import device_of
from tunebench.tuner.kernel import Kernel

SIZES = [(1, 1, 1, 1, 8), (2, 3, 37, 45, 40), (1, 2, 130, 70, 64), (2, 1, 33, 129, 20), (1, 2, 20, 64, 128)]
"""Batch, heads, queries, keys, elements of a head."""
CONFIGURATIONS: list[Mapping[str, Value]] = [
    {"warps": 4, "row_tiles": 1, "tile_keys": 32, "score_parts": 2},
    {"warps": 2, "row_tiles": 1, "tile_keys": 16, "score_parts": 3},
]


class Reference(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v)


class Scaled(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, scale=0.3).transpose(1, 2).contiguous()


class TunedAttention(blocks.Attention, Reference):
    tensors = ("q", "k", "v")


class TunedScaled(blocks.Attention, Scaled):
    tensors = ("q", "k", "v")
    scale = 0.3
    heads = 2


PAIRS: list[tuple[type[nn.Module], Any]] = [(Reference, TunedAttention), (Scaled, TunedScaled)]


def tensors(size: tuple[int, int, int, int, int], device: str, *, heads: int = 1) -> list[torch.Tensor]:
    """Draw queries as a linear layer leaves them, keys as they stand, and values off alignment.

    Args:
        heads: the dimension that counts them.
    """
    batch, count, queries, keys, width = size
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator)

    q, k = drawn(batch, queries, count, width), drawn(batch, count, keys, width)
    v = drawn(batch * count * keys * width + 1)[1:].view(batch, count, keys, width)
    return [q, k.transpose(1, 2), v.transpose(1, 2)] if heads == 2 else [q.transpose(1, 2), k, v]


def found(model: Any, given: list[torch.Tensor], values: Mapping[str, Value]) -> torch.Tensor:
    """Return what a model's kernel makes under a configuration."""
    pin(model, given[0], values, *given[1:])
    return run(model, *given)


def found_by_tiles(model: Any, given: list[torch.Tensor], values: Mapping[str, Value]) -> torch.Tensor:
    """Return what the tiles make, of which a CPU makes no use by itself."""
    kernel, problem, device = model.kernel, model.problem(*given), device_of(given[0].device)
    source = '#define tiles_on_cpu\n#include "attention.cuh"\n'
    by_tiles = Kernel.declare(
        __file__, kernel.space, source=source, axes=kernel.axes, compiled_axes=("size",), texts={}
    )
    plan = build_plan(by_tiles, kernel.space.choose(values, problem, device), problem, device, compiler_for(device))
    model.pin(plan)
    return run(model, *given)


def error(made: torch.Tensor, reference: nn.Module, given: list[torch.Tensor]) -> float:
    """Return the largest error beside the largest output."""
    wanted = reference(*(one.double() for one in given))  # PyTorch's own for float32 reads nothing off alignment
    assert made.shape == wanted.shape and made.dtype is torch.float32
    return float((made.double() - wanted).abs().max() / wanted.abs().max())
