"""Decompositions replace operations that Inductor leaves to libraries, or makes of what is no loop nest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._inductor.decomposition import select_decomp_table

from tunebench.studies.writing.loops.domain import SHORT_ROW


def _mean_of_windows(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Any:
    """Average pooling as a sum over the windows' dimensions, which Inductor has for small windows alone."""
    if ceil_mode or (any(padding) and not count_include_pad):
        return NotImplemented
    sides = len(kernel)
    if any(padding):
        pads = list(padding) * (sides // len(padding))
        x = torch.ops.aten.constant_pad_nd(x, [pad for one in reversed(pads) for pad in (one, one)], 0.0)
    for size, step in zip(kernel, stride or kernel, strict=True):
        x = x.unfold(-sides, size, step)  # the windows become the last dimension
    return x.sum(dim=tuple(range(-sides, 0))) / (divisor or math.prod(kernel))


_MOST_OF_TOP = 16
"""Largest k of a top-k that is made of that many maxima."""


def _maxima(
    x: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: ARG001 - torch's name; they are in order
) -> Any:
    """The largest elements one after another, each the first of its value that is not taken yet."""
    if not isinstance(k, int) or k > _MOST_OF_TOP or not x.dtype.is_floating_point or x.dim() == 0:
        return NotImplemented
    count, none = x.shape[dim], -math.inf if largest else math.inf
    shape = [1] * x.dim()
    shape[dim] = count
    place = torch.arange(count, device=x.device).reshape(shape)
    values, places = [], []
    taken = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(k):
        left = torch.where(taken, none, x)
        value = left.amax(dim, keepdim=True) if largest else left.amin(dim, keepdim=True)
        is_best = ~taken & ((x == value) | (x.isnan() & value.isnan()))
        best = torch.where(is_best, place, count).amin(dim, keepdim=True)
        taken = taken | (place == best)
        values.append(value)
        places.append(best)
    return torch.cat(values, dim), torch.cat(places, dim)


def _put(x: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor | float) -> Any:
    """A scatter of few elements along a dimension, as that many choices of each element."""
    if x.dim() == 0:
        return NotImplemented
    count, shape = index.shape[dim], [*x.shape]
    shape[dim] = count
    sources = [index.shape, *([values.shape] if isinstance(values, torch.Tensor) else [])]
    if not isinstance(count, int) or not 0 < count <= _MOST_OF_TOP or any([*one] != shape for one in sources):
        return NotImplemented
    place = torch.arange(x.shape[dim], device=x.device).reshape(
        [-1 if at == dim % x.dim() else 1 for at in range(x.dim())]
    )
    for at in range(count):
        value = values.narrow(dim, at, 1) if isinstance(values, torch.Tensor) else values
        x = torch.where(place == index.narrow(dim, at, 1), value, x).to(x.dtype)
    return x


def _above(row: int, col: int, offset: int = 0, **options: Any) -> Any:
    """The places on and above a diagonal of a square, row by row: row i has i fewer than the first.

    Torch's own decomposition takes its roots in double precision.
    """
    if row != col or offset < 0:
        return NotImplemented
    first = col - offset
    number = torch.arange(first * (first + 1) // 2, device=options.get("device"))

    def begin(row: torch.Tensor) -> torch.Tensor:
        return row * first - row * (row - 1) // 2

    near = ((2 * first + 1 - torch.sqrt(((2 * first + 1) ** 2 - 8 * number).float())) / 2).long()
    near = near + (begin(near + 1) <= number).long() - (begin(near) > number).long()
    return _one_of(near, number - begin(near) + near + offset)


def _below(row: int, col: int, offset: int = 0, **options: Any) -> Any:
    """The places on and below a diagonal of a square, row by row: each row has one more than the one before."""
    if row != col or offset > 0:
        return NotImplemented
    last = row + offset
    number = torch.arange(last * (last + 1) // 2, device=options.get("device"))

    def begin(row: torch.Tensor) -> torch.Tensor:
        return row * (row + 1) // 2

    near = ((torch.sqrt((8 * number + 1).float()) - 1) / 2).long()
    near = near + (begin(near + 1) <= number).long() - (begin(near) > number).long()
    return _one_of(near - offset, number - begin(near))


def _one_of(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Both beneath each other in memory: what reads at these places does not compute them for each of its elements."""
    places = torch.where(torch.arange(2, device=rows.device)[:, None] == 0, rows, columns)
    kept: torch.Tensor = torch.ops.prims.inductor_force_stride_order(places, places.stride())
    return kept


HALVES = (torch.float16, torch.bfloat16)


def _widened(x: torch.Tensor) -> torch.Tensor:
    """In the type that sums of it are made in."""
    return x.float() if x.dtype in HALVES else x


def _moments(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """Variance and mean by the corrected two-pass algorithm: the mean of equal elements is each of them, exactly.

    What a mean is off by is the mean of the differences from it, which the variance reads anyway (Chan, Golub and
    LeVeque, "Algorithms for Computing the Sample Variance", 1983). A row that is not kept on chip is rather read once,
    as Inductor does.
    """
    dim = list(dim or range(x.dim()))
    count = math.prod(x.shape[one] for one in dim)
    if (count if isinstance(count, int) else count.node.hint) > SHORT_ROW:
        return NotImplemented
    wide = _widened(x)
    first = wide.mean(dim, keepdim=True)
    apart = wide - first
    mean = first + apart.mean(dim, keepdim=True)
    variance = apart.square().sum(dim, keepdim=True) / max(count - (1 if correction is None else correction), 0)
    found = (variance, mean) if keepdim else (variance.squeeze(dim), mean.squeeze(dim))
    return found[0].to(x.dtype), found[1].to(x.dtype)


def _variance(x: torch.Tensor, dim: Sequence[int] | None = None, **options: Any) -> Any:
    """The first of `_moments`."""
    found = _moments(x, dim, **options)
    return found if found is NotImplemented else found[0]


def _deviation(x: torch.Tensor, dim: Sequence[int] | None = None, **options: Any) -> torch.Tensor:
    """The root of the variance, at full precision until then."""
    return torch.var(_widened(x), [*dim] if dim else None, **options).sqrt().to(x.dtype)


_aten = torch.ops.aten
_RESIZING = (
    *(_aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d),
    *(_aten._upsample_nearest_exact1d, _aten._upsample_nearest_exact2d, _aten._upsample_nearest_exact3d),
    *(_aten.upsample_linear1d, _aten.upsample_bilinear2d, _aten.upsample_trilinear3d),
)


def decompositions() -> dict[Any, Any]:
    """Inductor's decompositions, and those of what it leaves to other libraries."""
    return {
        **get_decompositions(_RESIZING),
        **select_decomp_table(),
        _aten.avg_pool3d.default: _mean_of_windows,
        _aten.topk.default: _maxima,
        _aten.scatter.src: _put,
        _aten.scatter.value: _put,
        _aten.triu_indices.default: _above,
        _aten.tril_indices.default: _below,
        _aten.var_mean.correction: _moments,
        _aten.var.correction: _variance,
        _aten.std.correction: _deviation,
    }
