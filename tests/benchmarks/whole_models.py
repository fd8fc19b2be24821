"""Whole models in plain PyTorch, as programs have them: at their sizes, or at small ones for a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[Any, ...]]
"""A model and the inputs of a call."""


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat((-other, one), -1) * sin


class LlamaBlock(nn.Module):
    """A decoder's layer with grouped queries; given keys and values, it continues them by a token."""

    def __init__(self, width: int, heads: int, groups: int, inner: int, positions: int) -> None:
        super().__init__()
        self.size = width // heads
        self.before, self.between = RMSNorm(width), RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        rates = 500_000.0 ** -(torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(positions), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor | None = None, values: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        y = self.before(x)
        q, k, v = (one(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for one in (self.q, self.k, self.v))
        past = 0 if keys is None else keys.shape[2]
        here = slice(past, past + x.shape[1])
        q, k = (rotated(one, self.cos[here], self.sin[here]) for one in (q, k))
        if keys is not None and values is not None:
            k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=keys is None, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return x if keys is None else (x, k, v)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, context: int | None = None, *, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=bias)
        self.k, self.v = (nn.Linear(context or width, width, bias=bias) for _ in range(2))
        self.o = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        given = x if context is None else context
        parts = (self.q(x), self.k(given), self.v(given))
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in parts)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class ViTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner)),
        )
        short = (nn.Conv2d(channels, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner))
        self.short = nn.Sequential(*(() if channels == 4 * inner else short))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.short(x))


def resnet_stage(inner: int, blocks: int) -> nn.Module:
    """Make a stage whose first block halves the picture."""
    rest = (Bottleneck(4 * inner, inner, 1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(2 * inner, inner, 2), *rest)


class GatedGELU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, gate = x.chunk(2, -1)
        return one * functional.gelu(gate)


class UNetBlock(nn.Module):
    """A diffusion model's: a residual block that is told the time, and a transformer that attends to a text."""

    def __init__(self, channels: int, heads: int, time: int, text: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(3))
        self.time = nn.Linear(time, channels)
        self.into, self.out = (nn.Linear(channels, channels) for _ in range(2))
        self.rows = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.own = Attention(channels, heads, bias=False)
        self.other = Attention(channels, heads, text, bias=False)
        self.mlp = nn.Sequential(nn.Linear(channels, 8 * channels), GatedGELU(), nn.Linear(4 * channels, channels))

    def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        y = self.first(functional.silu(self.norms[0](x))) + self.time(functional.silu(time))[:, :, None, None]
        x = x + self.second(functional.silu(self.norms[1](y)))
        y = self.into(self.norms[2](x).flatten(2).mT)
        y = y + self.own(self.rows[0](y))
        y = y + self.other(self.rows[1](y), text)
        y = y + self.mlp(self.rows[2](y))
        return x + self.out(y).mT.unflatten(-1, x.shape[2:])  # type: ignore[no-any-return]


class DLRMTower(nn.Module):
    """A recommender's: dense features and embeddings of categories, their products with each other, and a click."""

    def __init__(self, dense: int, tables: int, rows: int, width: int, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tables * rows, width)
        self.bottom = self._layers([dense, *bottom, width])
        places = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("places", places[0] * (tables + 1) + places[1])
        self.register_buffer("offsets", rows * torch.arange(tables))
        self.top = self._layers([width + places.shape[1], *top])
        self.click = nn.Linear(top[-1], 1)

    @staticmethod
    def _layers(widths: list[int]) -> nn.Sequential:
        pairs = pairwise(widths)
        return nn.Sequential(*(one for pair in pairs for one in (nn.Linear(*pair), nn.ReLU())))

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        features = torch.cat((x[:, None], self.embedding(categories + self.offsets)), 1)
        products = (features @ features.mT).flatten(1).index_select(1, self.places)
        return torch.sigmoid(self.click(self.top(torch.cat((x, products), 1))))


class ConformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.halves = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = Attention(width, heads)
        self.convolution = nn.Sequential(
            *(nn.Conv1d(width, 2 * width, 1), nn.GLU(1)),
            *(nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width), nn.BatchNorm1d(width), nn.SiLU()),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.halves[0](x)
        x = x + self.attention(self.norms[0](x))
        x = x + self.convolution(self.norms[1](x).mT).mT
        x = x + 0.5 * self.halves[1](x)
        return self.norms[2](x)  # type: ignore[no-any-return]


def _llama(*, small: bool, cached: bool) -> Made:
    width, heads, groups, inner, past = (64, 4, 2, 160, 24) if small else (4096, 32, 8, 14336, 1024)
    size = width // heads
    model = LlamaBlock(width, heads, groups, inner, past + 1)
    if not cached:
        return model, (torch.randn(2 if small else 4, past, width),)
    batch = 3 if small else 16
    return model, (torch.randn(batch, 1, width), *torch.randn(2, batch, groups, past, size))


def _dlrm(*, small: bool) -> Made:
    dense, tables, rows, width = (5, 4, 50, 8) if small else (13, 26, 20_000, 128)
    batch, bottom, top = (32, [16], [32, 16]) if small else (8192, [512, 256], [1024, 1024, 512, 256])
    categories = torch.randint(rows, (batch, tables))
    return DLRMTower(dense, tables, rows, width, bottom, top), (torch.randn(batch, dense), categories)


def _unet(*, small: bool) -> Made:
    channels, heads, time, text, batch, side, words = (
        (32, 4, 24, 16, 2, 8, 7) if small else (320, 8, 1280, 768, 8, 64, 77)
    )
    inputs = torch.randn(batch, channels, side, side), torch.randn(batch, time), torch.randn(batch, words, text)
    return UNetBlock(channels, heads, time, text), inputs


MODELS: Mapping[str, Callable[[bool], Made]] = {
    "llama": lambda small: _llama(small=small, cached=False),
    "llama with cache": lambda small: _llama(small=small, cached=True),
    "vit": lambda small: (
        (ViTBlock(64, 4), (torch.randn(2, 17, 64),)) if small else (ViTBlock(768, 12), (torch.randn(64, 197, 768),))
    ),
    "resnet": lambda small: (
        (resnet_stage(8, 2), (torch.randn(2, 16, 12, 12),))
        if small
        else (resnet_stage(256, 6), (torch.randn(64, 512, 28, 28),))
    ),
    "unet": lambda small: _unet(small=small),
    "dlrm": lambda small: _dlrm(small=small),
    "conformer": lambda small: (
        (ConformerBlock(32, 4, 7), (torch.randn(2, 20, 32),))
        if small
        else (ConformerBlock(512, 8, 31), (torch.randn(16, 500, 512),))
    ),
}
"""Makes each model, small or not."""
