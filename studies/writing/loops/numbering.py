"""Which element of which dimensions a number is, in C++."""

from __future__ import annotations

import re
from collections.abc import Sequence

import sympy

from tunebench.studies.writing.loops.expressions import cpp, product_of

Dimensions = Sequence[tuple[sympy.Symbol, sympy.Expr]]
"""Symbols of places along dimensions with their sizes, outermost first."""

_TURNS = 16
"""Most neighbouring threads that have neighbours across the elements of each: of a half type these fill a sector."""


def in_order(number: sympy.Symbol, dimensions: Dimensions) -> list[str]:
    """Return declarations of the dimensions of what is numbered; none where there is one."""
    if len(dimensions) <= 1:
        return []
    lines = []
    for at, (symbol, size) in enumerate(dimensions):
        behind = _behind(dimensions, at)
        whole = str(number) if behind == 1 else f"{number} / {factor(behind)}"
        lines.append(f"const index_t {symbol} = {whole}{f' % {factor(size)}' if at else ''};")
    return lines


def in_turn(number: sympy.Symbol, dimensions: Dimensions, across: sympy.Symbol) -> list[str]:
    """Return declarations where a thread has neighbours along the last dimension, and some tensor's lie across those.

    Neighbouring threads have neighbours along that other dimension, whose elements fill a sector of memory as a
    thread's own do: no tensor is read or written in parts of sectors.
    """
    at = [symbol for symbol, _ in dimensions].index(across)
    size, (last, own) = factor(dimensions[at][1]), dimensions[-1]
    lines = [f"constexpr int turns = common({_TURNS}, {cpp(product_of(dimensions[at][1]))});"]
    for place, (symbol, of_one) in enumerate(dimensions[:-1]):
        behind = factor(_behind(dimensions, place))
        whole = f"{number} / {behind}" if place < at else f"{number} / ({behind}*turns)"
        if place == at:
            whole = f"{whole}{f' % ({size} / turns)' if at else ''} * turns + {number} / items % turns"
        else:
            whole += f" % {factor(of_one)}" if place else ""
        lines.append(f"const index_t {symbol} = {whole};")
    return [*lines, f"const index_t {last} = {number} / (items * turns) % ({factor(own)} / items) * items;"]


def factor(expression: sympy.Expr) -> str:
    """Return an expression as a factor of a product."""
    text = cpp(product_of(expression))
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _behind(dimensions: Dimensions, at: int) -> sympy.Expr:
    return sympy.prod([one for _, one in dimensions[at + 1 :]])
