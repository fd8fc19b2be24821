"""The elements of a nest as dimensions: which of them the dimensions of each of its nodes are.

Nodes of a nest name the same elements by other dimensions: (rows, columns) of one is (rows * columns) of another, and
(batch, channels, places) of a third is (batch, places) that are kept and channels that are reduced. All are told in
terms of the finest dimensions, so that equal places in memory are equal expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import sympy
from torch._inductor.virtualized import V

Sizes = Sequence[sympy.Expr]

_LEAST_ROWS = 256
"""Rows are many from this number on: a block for each of them keeps a GPU busy."""
SHORT_ROW = 1 << 14
"""A row is short up to this number of elements: one block keeps them on chip, and is through with them sooner than
another launch begins."""


class Domain:
    """The kept and the reduced elements of a nest.

    Args:
        kept, reduced: how many; None where nothing is reduced.
        sizes: of the nodes' dimensions in the order of the elements, those of reducing nodes first.

    Attributes:
        kept_dimensions, reduced_dimensions: the finest ones, outermost first: symbols with their sizes.
    """

    def __init__(self, kept: sympy.Expr, reduced: sympy.Expr | None, sizes: Iterable[Sizes]) -> None:
        self.kept, self.reduced = kept, sympy.Integer(1) if reduced is None else reduced
        marks = [self.reduced, simplified(self.kept * self.reduced)]
        for one in sizes:
            marks = _with_marks(marks, one) or marks
        within = [one for one in marks if hint(one) <= hint(self.reduced)]
        across = marks[len(within) :]
        own = _ratios([sympy.Integer(1), *within])
        outer = _ratios([self.reduced, *across])
        self.kept_dimensions = _named("k", outer[::-1])
        self.reduced_dimensions = [] if reduced is None else _named("r", own[::-1])

    @property
    def ranges(self) -> dict[sympy.Symbol, sympy.Expr]:
        """The sizes of the dimensions, by their symbols."""
        return dict([*self.kept_dimensions, *self.reduced_dimensions])

    def kept_variables(self, sizes: Sizes) -> list[sympy.Expr] | None:
        """Return dimensions of the kept elements in terms of the finest; None where they are no such."""
        return _grouped(sizes, self.kept_dimensions)

    def reduced_variables(self, sizes: Sizes) -> list[sympy.Expr] | None:
        """Return dimensions of the reduced elements in terms of the finest; None where they are no such."""
        return _grouped(sizes, self.reduced_dimensions)

    def variables(self, sizes: Sizes) -> list[sympy.Expr] | None:
        """Return dimensions of all elements in terms of the finest; None where they are no such."""
        in_order = _grouped(sizes, [*self.kept_dimensions, *self.reduced_dimensions])
        return in_order or _interleaved(sizes, self.kept_dimensions, self.reduced_dimensions)


def simplified(expression: sympy.Expr) -> sympy.Expr:
    """Return an expression of sizes in its expanded form."""
    return V.graph.sizevars.simplify(sympy.sympify(expression))


def is_by_rows(kept: sympy.Expr, reduced: sympy.Expr) -> bool:
    """Whether each element of rows that are reduced is computed by the threads of its row as well as by any.

    Few long rows leave most of a GPU idle: several blocks reduce each of them, and a later pass has the elements.
    """
    return hint(kept) >= _LEAST_ROWS or hint(reduced) <= SHORT_ROW


def hint(size: sympy.Expr) -> int:
    """Return a size as it is in the problem that is written for."""
    sizes: Any = V.graph.sizevars
    told = getattr(sizes, "optimization_hint", None) or sizes.size_hint  # its name up to torch 2.12
    return int(told(size, fallback=1 << 40))


def _quotient(size: sympy.Expr, other: sympy.Expr) -> sympy.Expr | None:
    """A size by another one; None where that does not divide it whatever they are."""
    ratio = sympy.factor(size) / sympy.factor(other)
    return simplified(ratio) if sympy.fraction(sympy.together(ratio))[1] == 1 else None


def _with_marks(marks: list[sympy.Expr], sizes: Sizes) -> list[sympy.Expr] | None:
    """Marks, each a multiple of the one before it, with products of trailing dimensions; None if they do not fit."""
    found, product = list(marks), sympy.Integer(1)
    for size in reversed([one for one in sizes if one != 1]):
        product = simplified(product * size)
        if not any(simplified(product - one) == 0 for one in found):
            found.append(product)
    found.sort(key=hint)
    if simplified(found[-1] - marks[-1]) != 0:
        return None
    fits = all(_quotient(big, small) is not None for small, big in pairwise(found))
    return found if fits else None


def _ratios(marks: Sizes) -> list[sympy.Expr]:
    ratios = [_quotient(big, small) for small, big in pairwise(marks)]
    return [one for one in ratios if one is not None and one != 1]


def _named(letter: str, sizes: Sizes) -> list[tuple[sympy.Symbol, sympy.Expr]]:
    names = [letter] if len(sizes) == 1 else [f"{letter}{at}" for at in range(len(sizes))]
    return [(sympy.Symbol(name, integer=True, nonnegative=True), size) for name, size in zip(names, sizes, strict=True)]


def _run(size: sympy.Expr, dimensions: Sequence[tuple[sympy.Symbol, sympy.Expr]]) -> tuple[sympy.Expr, int] | None:
    """The place along leading dimensions whose product is a size, and how many they are."""
    place, product = sympy.Integer(0), sympy.Integer(1)
    for count, (symbol, own) in enumerate(dimensions):
        place, product = place * own + symbol, simplified(product * own)
        if simplified(product - size) == 0:
            return sympy.expand(place), count + 1
    return None


def _grouped(sizes: Sizes, dimensions: Sequence[tuple[sympy.Symbol, sympy.Expr]]) -> list[sympy.Expr] | None:
    found, left = [], list(dimensions)
    for size in sizes:
        if size == 1:
            found.append(sympy.Integer(0))
            continue
        if (run := _run(size, left)) is None:
            return None
        found.append(run[0])
        left = left[run[1] :]
    return None if left else found


def _interleaved(
    sizes: Sizes,
    kept: Sequence[tuple[sympy.Symbol, sympy.Expr]],
    reduced: Sequence[tuple[sympy.Symbol, sympy.Expr]],
) -> list[sympy.Expr] | None:
    """Group as `_grouped` does, each dimension of the next kept elements or of the next reduced ones."""
    if not sizes:
        return None if kept or reduced else []
    size, *others = sizes
    if size == 1:
        rest = _interleaved(others, kept, reduced)
        return None if rest is None else [sympy.Integer(0), *rest]
    for is_kept, dimensions in ((True, kept), (False, reduced)):
        if (run := _run(size, dimensions)) is not None:
            behind = dimensions[run[1] :]
            rest = _interleaved(others, behind if is_kept else kept, reduced if is_kept else behind)
            if rest is not None:
                return [run[0], *rest]
    return None
