"""Attention in float32: softmax(q · kᵀ · scale) · v, as `scaled_dot_product_attention` without a mask makes it.

    class ModelNew(blocks.Attention, Model):
        tensors = ("q", "k", "v")

    tensors         the arguments of forward that are the queries, the keys and the values
    scale           of the scores; None for 1 / sqrt(size)
    heads           the dimension that counts the heads: 1 as torch has them, or 2 of tensors that are
                    (batch, length, heads, size)

PyTorch multiplies float32 here at full precision, whatever its settings permit. The products of this block are of
bfloat16 parts of each number: see `attention.cuh`. Half types are left to PyTorch's kernels, and so is what its kernel
for float32 does not take: heads whose elements do not come in fours, or do not lie side by side.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from tunebench.kernels.blocks.block import Block, Design, Kind, Operand
from tunebench.kernels.shared.alignment import aligned
from tunebench.tuner.device import MOST_BLOCKS
from tunebench.tuner.kernel import Plan, ceil_div
from tunebench.tuner.problem import OUTPUT, Problem, Work
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

_FIRST, _SECOND = 1, 2
_MOST_SIZE = 128
"""Elements of a head that registers hold."""
_WIDE_SIZE = 64
"""With more, registers hold one tile of queries."""
_MOST_SHARED_BYTES = 48 * 1024
_PACK = 4
_MOST_LENGTH = 2**30


def _padded(size: int, step: int) -> int:
    return step * ceil_div(size, step)


def _stages_fit(tile_keys: int, score_parts: int, problem: Problem) -> bool:
    """Require that the tiles of keys and of values are within the shared memory that any block may have."""
    size = problem.axes["size"]
    depth = _padded(size, 16)
    keys = score_parts * tile_keys * (depth + (16 if depth % 32 == 0 else 0))
    values = 2 * _padded(size, 8) * (tile_keys + 16)
    return 2 * (keys + values) <= _MOST_SHARED_BYTES


def _registers_fit(row_tiles: int, problem: Problem) -> bool:
    return row_tiles == 1 or problem.axes["size"] <= _WIDE_SIZE


def _grid_fits(warps: int, row_tiles: int, problem: Problem) -> bool:
    stacks = problem.axes["batch"] * problem.axes["heads"]
    return stacks * ceil_div(problem.axes["queries"], 16 * warps * row_tiles) <= MOST_BLOCKS


SPACE = SearchSpace(
    (
        Tunable("warps", (2, 4, 8), default=4),
        Tunable("row_tiles", (1, 2)),
        Tunable("tile_keys", (16, 32, 64), default=32),
        Tunable("score_parts", (2, 3), default=3),
    ),
    (
        Constraint("stages_within_shared_memory", _stages_fit),
        Constraint("registers_hold_the_queries", _registers_fit),
        Constraint("grid_within_limit", _grid_fits),
    ),
    starts=({"tile_keys": 64}, {"tile_keys": 64, "row_tiles": 2}, {"warps": 8}),
    rounding=("score_parts",),
)


class Attention(Block):
    """softmax(q · kᵀ · scale) · v; attributes as in `Block`."""

    tensors: ClassVar[tuple[str, ...]]
    scale: ClassVar[float | None] = None
    heads: ClassVar[int] = _FIRST
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    kinds_of_operands: ClassVar[tuple[Kind, ...]] = ()

    @classmethod
    def design(cls) -> Design:
        """Design one pass over the keys, whose entry point is `attention`."""
        arguments = list(cls._arguments())
        names = getattr(cls, "tensors", ())
        if len(names) != 3 or len({*names} & {*arguments}) != 3:
            raise cls.wrong("tensors", f"it is {names!r}: give three arguments of forward ({', '.join(arguments)})")
        if cls.heads not in (_FIRST, _SECOND):
            raise cls.wrong("heads", f"it is {cls.heads!r}: give 1, or 2 where the length stands in front of it")
        if cls.scale is not None and not isinstance(cls.scale, int | float):
            raise cls.wrong("scale", f"it is {cls.scale!r}: give a number, or None for 1 / sqrt(size)")
        cls.used = tuple(Operand(name, Kind.ELEMENT, name, arguments.index(name)) for name in names)
        axes = dict(zip((*names, OUTPUT), map(cls._axes, ("queries", "keys", "keys", "queries")), strict=True))
        return Design('#include "attention.cuh"\n', SPACE, axes, _work, compiled_axes=("size",))

    @classmethod
    def _axes(cls, length: str) -> tuple[str, ...]:
        inner = ("heads", length) if cls.heads == _FIRST else (length, "heads")
        return ("batch", *inner, "size")

    def problem(self, *inputs: Any, **named: Any) -> Problem | None:
        """Accept heads of up to 128 elements, in fours."""
        problem = super().problem(*inputs, **named)
        if problem is not None and ((size := problem.axes["size"]) > _MOST_SIZE or size % _PACK):
            return self.unserved(f"heads have {size} elements: the kernel is for multiples of 4 up to {_MOST_SIZE}")
        if problem is not None and max(problem.axes["queries"], problem.axes["keys"]) > _MOST_LENGTH:
            return self.unserved("the kernel counts queries and keys in 32 bits")
        return problem

    def accepts_layout(self, name: str, tensor: torch.Tensor) -> bool:  # noqa: ARG002
        """Accept rows that can be read in packs, as PyTorch's own kernel does."""
        return tensor.stride(-1) == 1 and all(stride and stride % _PACK == 0 for stride in tensor.stride()[:-1])

    def tuned_forward(self, plan: Plan, *inputs: Any, **named: Any) -> torch.Tensor:  # noqa: ARG002
        """Compute the attention of all heads."""
        q, k, v = (_heads_first(aligned(one), self.heads) for one in self.values(inputs))
        batch, heads, queries, size = q.shape
        lies_as_queries = self.heads == _FIRST and q.device.type == "cpu"  # PyTorch's own output does so there
        made = torch.empty_like(q) if lies_as_queries else q.new_empty((batch, queries, heads, size)).transpose(1, 2)
        factor = (1 / math.sqrt(size) if self.scale is None else self.scale) * math.log2(math.e)
        tensors = (q, k, v, made)
        strides = [stride for one in tensors for stride in one.stride()[:3]]
        rows = 16 * plan.integer("warps") * plan.integer("row_tiles")
        blocks, threads = batch * heads * ceil_div(queries, rows), 32 * plan.integer("warps")
        sizes = (queries, k.shape[2], heads, factor)
        plan.launch("attention", *tensors, *sizes, *strides, blocks=blocks, threads=threads)
        return _heads_first(made, self.heads)


def _heads_first(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    return tensor if heads == _FIRST else tensor.transpose(1, 2)


def _work(problem: Problem) -> Work:
    """Return the least work: queries, keys, values and the output cross memory once."""
    batch, heads, queries, keys, size = (problem.axes[name] for name in ("batch", "heads", "queries", "keys", "size"))
    elements = 2 * batch * heads * size * (queries + keys)
    return Work(elements * problem.item_bytes, operations=4 * batch * heads * queries * keys * size)
