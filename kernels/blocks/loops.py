"""Passes over loop nests, as `tunebench new` writes them: their space, their launches, and what they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

import torch
from torch import nn

from tunebench.kernels.blocks.block import fast_math_tunables
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.shared.alignment import aligned
from tunebench.tuner import constraints
from tunebench.tuner.build import Argument
from tunebench.tuner.kernel import Plan, ceil_div
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

_Part = tuple[tuple[Tunable, ...], tuple[Constraint, ...]]
_MOST_BYTES = 24
"""Upper limit of the bytes of a value that is joined."""
_MANY = (1, 4, 16, 64, 256, 1024)
THREADS, WIDTH = "element_threads", "pass_vector_width"
"""Tunables of all passes: the threads of a block of those over elements, and the elements that a thread has at once."""


def fast_math() -> _Part:
    """Return the tunable that takes CUDA's fast functions, for all passes of a source."""
    return fast_math_tunables(["exp(x)"])


def vectors() -> _Part:
    """Return the tunable of how many neighbours a thread reads and writes at once, where a size is a multiple of it.

    By default 16 bytes of a half type, which is the largest access, and twice those of float32.
    """
    return (Tunable(WIDTH, (1, 2, 4, 8, 16), default=8),), ()


def over_elements() -> _Part:
    """Return the tunable of all passes that compute elements, a thread each: the threads of a block."""
    return (Tunable(THREADS, (64, 128, 256, 512, 1024), default=256),), ()


def over_rows(name: str, *, rows: int, lanes: int, parts: int = 0, freely: bool = True) -> _Part:
    """Return the tunables of a pass that reduces rows, and their constraints.

    Args:
        rows, lanes: by default, the rows of a block and the threads of each of them.
        parts: by default, the blocks of a row, of a pass that may divide them; 0 of another.
        freely: whether each has all of its values; else, of one of many passes, whose choices multiply, the lanes are
            these or four times as many, and nothing else is tuned.
    """
    names = (f"{name}_rows", f"{name}_lanes")
    several = sorted({*_MANY, lanes}) if freely else [lanes, 4 * lanes]
    tunables = [
        Tunable(names[0], tuple(sorted({*_MANY[:-1], rows})) if freely else (rows,), default=rows),
        Tunable(names[1], tuple(several), default=lanes),
    ]
    if parts:
        tunables.append(
            Tunable(f"{name}_parts", tuple(sorted({1, parts, 4 * parts})) if freely else (parts,), default=parts)
        )
    return tuple(tunables), (constraints.block_fits(*names), constraints.fills_warps(*names))


def space(*parts: _Part) -> SearchSpace:
    """Return the space of several passes."""
    tunables = {one.name: one for part in parts for one in part[0]}
    return SearchSpace(tuple(tunables.values()), tuple(one for part in parts for one in part[1]))


def sized(model: TunedModule, problem: Problem | None, **sizes: int) -> Problem | None:
    """Return a block's problem with sizes that are constants of the passes behind it.

    None, with a reason, where the block's output is not contiguous, as a convolution's is for channels-last filters.
    """
    if problem is None:
        return None
    if problem.options.get("output", "nchw") != "nchw":
        return model.unserved("the passes are for contiguous tensors")
    return replace(problem, axes={**problem.axes, **sizes})


def launch(
    plan: Plan,
    name: str,
    tensors: Sequence[Argument],
    kept: int,
    reduced: int | None = None,
    *,
    innermost: int = 1,
    joins: int = 0,
) -> None:
    """Launch a pass.

    Args:
        kept: the number of elements that it keeps.
        reduced: the number of elements that it reduces to each; None where it reduces none.
        innermost: the size of the dimension whose elements a thread has several of, of a pass that reduces none.
        joins: how many values of a row are joined where several blocks may have it; 0 where one has.
    """
    if kept == 0:
        return
    rows = plan.integer(THREADS) if reduced is None else plan.integer(f"{name}_rows")
    threads = rows * (1 if reduced is None else plan.integer(f"{name}_lanes"))
    # Passes read and write nothing else at a tensor's place.
    tensors = [aligned(one) if isinstance(one, torch.Tensor) else one for one in tensors]
    blocks, parts = (
        ceil_div(kept, rows * gcd(plan.integer(WIDTH), innermost) if innermost > 1 else rows),
        plan.integer(f"{name}_parts") if joins else 1,
    )
    if parts == 1:
        plan.launch(name, *tensors, blocks=blocks, threads=threads)
        return
    device = next(one.device for one in tensors if isinstance(one, torch.Tensor))
    made = [torch.empty(kept * parts * _MOST_BYTES, dtype=torch.uint8, device=device) for _ in range(joins)]
    plan.launch(f"{name}_part", *tensors, *made, blocks=(blocks, parts), threads=threads)
    plan.launch(f"{name}_join", *tensors, *made, blocks=blocks, threads=threads)


def accumulator(plan: Plan) -> torch.dtype:
    """Return the type that a problem's sums are made in."""
    return torch.float64 if plan.problem.dtype == "float64" else torch.float32


def numbers_of(model: nn.Module) -> dict[str, object]:
    """Return the numbers and words that a model and its layers have as attributes, and the shapes of their tensors."""
    found: dict[str, object] = {}
    for place, layer in model.named_modules():
        own = {
            name: value
            for name, value in vars(layer).items()
            if not name.startswith("_") and name not in ("training", "policy", "accuracy", "wait") and _is_plain(value)
        }
        tensors = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
        own |= {name: tuple(tensor.shape) for name, tensor in tensors}
        found |= {f"{place}.{name}" if place else name: value for name, value in own.items()}
    return found


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, int | float | str) or value is None


def changed(model: nn.Module, numbers: Mapping[str, object]) -> str:
    """Return the path of an attribute that is not what passes were written for; empty where there is none."""
    found = numbers_of(model)
    return next((path for path, value in numbers.items() if path not in found or found[path] != value), "")
