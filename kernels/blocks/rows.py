"""Rows: reductions of each row, and a device function of every element, or of every row, that knows their results.

    class ModelNew(blocks.Rows, Model):  # softmax
        reductions = {"top": blocks.Max("x"), "sum": blocks.Sum("exp(x - top)")}
        function = "exp(x - top) / sum"

A row is the last dimension of the tensors that `forward` takes, the last `row_dimensions` of them, or one of so many
`groups` of dimension 1 with all that is behind it. Reductions are made in order: each may use the results of those
before it. `features` is how many elements a row has. Where the function names no element the output has one value for
each row, with its dimensions kept if `keepdim` says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

import torch

from tunebench.kernels.blocks.block import Block, Design, Kind, axes_of
from tunebench.kernels.blocks.device_function import used_names
from tunebench.kernels.blocks.reductions import Max, Min, Product, Reduction, Sum, stages_of
from tunebench.kernels.blocks.rows_source import source_of
from tunebench.kernels.blocks.rows_space import padded, space_of
from tunebench.kernels.runtime.tuned_module import computed_in
from tunebench.tuner.build import Argument
from tunebench.tuner.kernel import Plan, ceil_div
from tunebench.tuner.problem import OUTPUT, Problem, Work

_AXES = {
    Kind.ELEMENT: "elements",
    Kind.PER_FEATURE: "features",
    Kind.PER_ROW: "rows",
    Kind.PER_CHANNEL: "channels",
    Kind.PER_TENSOR: "ones",
}
_OF_ELEMENTS = (Kind.ELEMENT, Kind.PER_FEATURE, Kind.PER_CHANNEL)


class Rows(Block):
    """Reductions of rows; attributes as in `Block`, and those below."""

    reductions: ClassVar[Mapping[str, Reduction]]
    """The reductions by the name of their result in later texts."""
    row_dimensions: ClassVar[int] = 1
    """Number of trailing dimensions that make up a row."""
    groups: ClassVar[int | str] = 0
    """A number, or where the model has it: a row is one of so many groups of dimension 1, with all that is behind."""
    keepdim: ClassVar[bool] = False
    """Whether the shape of an output with one value a row has ones in the place of the row's dimensions."""

    kinds_of_operands = (Kind.SCALAR, Kind.PER_FEATURE, Kind.PER_ROW, Kind.PER_CHANNEL, Kind.PER_TENSOR)

    first: ClassVar[int]
    """The place among the operands of the tensor whose shape the output has."""
    tensors: ClassVar[int]
    has_channels: ClassVar[bool]
    is_of_rows: ClassVar[bool]
    stages: ClassVar[tuple[int, int]]
    """The number of passes of the reductions: plainly, and with a maximum and a sum in one."""
    has_online: ClassVar[bool]
    reduction_count: ClassVar[int]

    @classmethod
    def design(cls) -> Design:
        """Design one launch, or one for every stage where rows have several blocks each."""
        reductions = checked_reductions(cls, getattr(cls, "reductions", None))
        if not isinstance(cls.row_dimensions, int) or cls.row_dimensions < 1:
            raise cls.wrong("row_dimensions", f"it is {cls.row_dimensions!r}: give how many last dimensions are a row")
        if type(cls.groups) not in (int, str) or (isinstance(cls.groups, int) and cls.groups < 0):
            raise cls.wrong("groups", f"it is {cls.groups!r}: give a number, or the path of an attribute that is one")
        texts = {f"reductions[{name!r}]": one.text for name, one in reductions.items()}
        texts["function"] = cls.text("function")
        cls.used = cls.operands(texts, known=(*reductions, "features"))
        elements = {one.name for one in cls.used if one.kind in _OF_ELEMENTS}
        if not any(one.kind is Kind.ELEMENT for one in cls.used):
            raise cls.wrong("reductions", f"they use no tensor of forward ({', '.join(cls._arguments())})")
        stages = stages_of(reductions)
        cls.first = next(at for at, one in enumerate(cls.used) if one.kind is Kind.ELEMENT)
        cls.tensors = sum(one.kind is Kind.ELEMENT for one in cls.used)
        cls.has_channels = any(one.kind is Kind.PER_CHANNEL for one in cls.used)
        cls.is_of_rows = not elements & set(used_names(texts["function"]))
        cls.stages = stages.counts
        cls.has_online = stages.online is not None
        cls.reduction_count = len(reductions)
        return Design(
            source_of(cls.__name__, cls.used, reductions, stages, texts, is_of_rows=cls.is_of_rows),
            space_of(list(texts.values()), cls.tensors, has_online=cls.has_online, is_of_rows=cls.is_of_rows),
            {**axes_of(cls.used, _AXES), OUTPUT: "rows" if cls.is_of_rows else "elements"},
            functools.partial(_work, [one.kind for one in cls.used], cls.is_of_rows),
        )

    def problem(self, *inputs: Any, **named: Any) -> Problem | None:
        """Accept contiguous tensors of one shape, and vectors that fit their rows."""
        problem = super().problem(*inputs, **named)
        if problem is None:
            return None
        values = self.values(inputs)
        first = values[self.first]
        if first.dim() < (2 if self.groups or self.has_channels else self.row_dimensions):
            return self.unserved(f"'{self.used[self.first].path}' has {first.dim()} dimensions")
        groups = self._groups()
        if self.groups and (type(groups) is not int or groups < 1 or first.shape[1] % groups):
            return self.unserved(f"{first.shape[1]} channels are not of {groups} groups")
        rows = self._rows(first)
        features = first.numel() // rows
        sizes = {Kind.ELEMENT: first.numel(), Kind.PER_FEATURE: features, Kind.PER_ROW: rows}
        if self.has_channels:
            sizes[Kind.PER_CHANNEL] = first.shape[1]
        for one, value in zip(self.used, values, strict=True):
            if one.kind is Kind.SCALAR:
                continue
            if value.numel() != sizes.get(one.kind, 1) or (one.kind is Kind.ELEMENT and value.shape != first.shape):
                return self.unserved(f"'{one.path}' has the shape {tuple(value.shape)}")
            if not value.is_contiguous():
                return self.unserved(f"'{one.path}' is not contiguous: its strides are {value.stride()}")
        return Problem({"rows": rows, "features": features}, problem.dtype, problem.options)

    def _groups(self) -> int:
        found: int = attrgetter(self.groups)(self) if isinstance(self.groups, str) else self.groups
        return found

    def _rows(self, first: torch.Tensor) -> int:
        """Return how many rows a tensor has."""
        if self.groups:
            return first.shape[0] * self._groups()
        return math.prod(first.shape[: first.dim() - self.row_dimensions])

    def tuned_forward(self, plan: Plan, *inputs: Any, **named: Any) -> torch.Tensor:  # noqa: ARG002
        """Compute the function of all elements, or of all rows."""
        values = self.values(inputs)
        first = values[self.first]
        rows = self._rows(first)
        features = first.numel() // rows
        if self.is_of_rows:
            output: torch.Tensor = first.new_empty(self._shape_of_rows(first))
        else:
            output = torch.empty_like(first)
        inner, channels = (math.prod(first.shape[2:]), first.shape[1]) if self.has_channels else (1, 1)
        stages = self.stages[self.has_online and bool(plan["online"])]
        sizes = (rows, features, inner, channels)
        launch_rows(plan, (*values, output), sizes, self.tensors, stages, self.reduction_count)
        return output

    def _shape_of_rows(self, first: torch.Tensor) -> tuple[int, ...]:
        if self.groups:
            return first.shape[0], self._groups()
        kept = (1,) * self.row_dimensions if self.keepdim else ()
        return (*first.shape[: -self.row_dimensions], *kept)


def checked_reductions(cls: type[Block], found: object) -> dict[str, Reduction]:
    """Return the attribute `reductions` of a class.

    Raises:
        KernelFolderError: it is wrong, or a reduction uses one that comes no earlier; the message says how.
    """
    if not isinstance(found, Mapping) or not found:
        raise cls.wrong("reductions", 'give a dict of reductions, such as {"sum": blocks.Sum("x")}')
    for name, one in found.items():
        if not isinstance(name, str) or not name.isidentifier() or name in ("features", *cls._arguments()):
            raise cls.wrong("reductions", f"{name!r} cannot name a reduction: use an identifier of its own")
        if type(one) not in (Sum, Product, Max, Min) or not isinstance(one.text, str) or not one.text.strip():
            raise cls.wrong("reductions", f"'{name}' is {one!r}: give Sum, Product, Max or Min of a text")
    names = list(found)
    for at, (name, one) in enumerate(found.items()):
        if later := [other for other in used_names(one.text) if other in names[at:]]:
            raise cls.wrong("reductions", f"'{name}' uses '{later[0]}', which comes no earlier: put it behind that")
    return dict(found)


def launch_rows(
    plan: Plan,
    arguments: tuple[Argument, ...],
    sizes: tuple[int, int, int, int],
    tensors: int,
    stages: int,
    reductions: int,
) -> None:
    """Launch the entry points of `source_of`.

    Args:
        arguments: the values of the operands, and a tensor as the output.
        sizes: rows and features; the neighbours in memory that have one channel, and how many channels there are.
        tensors: of the operands with an element for each of a row's.
        stages: how many passes the reductions take.
        reductions: how many there are.
    """
    rows, features, *_ = sizes
    given = (*arguments, *sizes)
    if plan["keep"] != "split":
        blocks, threads, shared = plan.once(_geometry, rows, features, tensors)
        plan.launch("rows_at_once", *given, blocks=blocks, threads=threads, shared=shared)
        return
    output = arguments[-1]
    assert isinstance(output, torch.Tensor)
    splits, blocks, threads = plan.once(_splits, rows, features)
    partials = output.new_empty(rows * splits * reductions, dtype=computed_in(output.dtype))
    for stage in range(stages):
        plan.launch("row_partials", *given, partials, splits, stage, blocks=blocks, threads=threads)
    plan.launch("row_results", *given, partials, splits, stages, blocks=blocks, threads=threads)


def _geometry(plan: Plan, rows: int, features: int, tensors: int) -> tuple[int, int, int]:
    """Return blocks, threads and shared memory of the one launch."""
    threads, width = plan.integer("block_size"), plan.integer("vector_width")
    of_block = threads // plan.integer("row_threads")
    shared = 0
    if plan["keep"] == "shared":
        shared = of_block * tensors * padded(features, width) * plan.problem.item_bytes
    blocks = ceil_div(rows, of_block)
    if plan.integer("waves") > 0:
        blocks = min(blocks, plan.integer("waves") * plan.resident_blocks("rows_at_once", threads, shared))
    return blocks, threads, shared


def _splits(plan: Plan, rows: int, features: int) -> tuple[int, int, int]:
    """Return blocks of a row, of all rows, and threads: as many as fill the device some times, none of them idle."""
    threads, width = plan.integer("block_size"), plan.integer("vector_width")
    wanted = plan.integer("split_waves") * plan.resident_blocks("row_partials", threads) // rows
    most = ceil_div(features, threads * width * plan.integer("vectors_per_thread"))
    splits = max(1, min(wanted, most))
    return splits, rows * splits, threads


def _work(kinds: list[Kind], is_of_rows: bool, problem: Problem) -> Work:
    """Return the least work: tensors cross memory once; those per channel, and single values, count as nothing."""
    rows, features = problem.axes["rows"], problem.axes["features"]
    sizes = {
        Kind.ELEMENT: rows * features,
        Kind.PER_FEATURE: features,
        Kind.PER_ROW: rows,
    }
    elements = sum(sizes.get(kind, 0) for kind in kinds) + (rows if is_of_rows else rows * features)
    return Work(elements * problem.item_bytes, rows * features)
