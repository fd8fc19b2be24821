"""Sizes and places as texts: Inductor's index expressions in CUDA C++ and in Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

import sympy
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, Max, ModularIndexing
from torch.utils._sympy.printers import ExprPrinter, PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy


def _is_closed(text: str) -> bool:
    """Whether the first parenthesis of a text is closed by its last."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return at == len(text) - 1
    return False


class _CppPrinter(ExprPrinter):
    """Prints an expression of integers; sums and products as C++ has them, and quotients rounded down."""

    def __init__(self, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]) -> None:
        super().__init__()
        self._ranges = ranges

    def _factor(self, expression: sympy.Expr) -> str:
        text = self._print(expression)
        return text if re.fullmatch(r"\w+", text) or (text.startswith("(") and _is_closed(text)) else f"({text})"

    def _quotient(self, dividend: sympy.Expr, divisor: sympy.Expr) -> str:
        left, right = self._factor(dividend), self._factor(divisor)
        if bound_sympy(dividend, dict(self._ranges)).lower >= 0:
            return f"{left} / {right}"
        return f"floor_div({self._print(dividend)}, {self._print(divisor)})"

    def _print_FloorDiv(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        return self._quotient(*expr.args)

    _print_CleanDiv = _print_FloorDiv  # noqa: N815

    def _print_ModularIndexing(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        dividend, divisor, modulus = expr.args
        whole = self._factor(dividend) if divisor == 1 else self._quotient(dividend, divisor)
        if bound_sympy(dividend, dict(self._ranges)).lower >= 0:
            return f"{whole} % {self._factor(modulus)}"
        return f"floor_mod({whole}, {self._print(modulus)})"

    def _print_PythonMod(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        return f"floor_mod({self._print(expr.args[0])}, {self._print(expr.args[1])})"

    def _print_Max(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        first, *rest = expr.args
        return f"larger({self._print(first)}, {self._print(sympy.Max(*rest))})" if rest else self._print(first)

    def _print_Min(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        first, *rest = expr.args
        return f"smaller({self._print(first)}, {self._print(sympy.Min(*rest))})" if rest else self._print(first)

    def _print_Abs(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        return f"magnitude({self._print(expr.args[0])})"

    def _print_IntTrueDiv(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        return f"(accumulator_t({self._print(expr.args[0])}) / accumulator_t({self._print(expr.args[1])}))"

    _print_FloatTrueDiv = _print_IntTrueDiv  # noqa: N815

    def _print_ToFloat(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        return f"accumulator_t({self._print(expr.args[0])})"

    def _print_FloatPow(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        base, power = map(self._print, expr.args)
        return f"pow(accumulator_t({base}), accumulator_t({power}))"

    def _print_Pow(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        base, power = expr.args
        if not (power.is_integer and power.is_number and power > 0):
            raise TypeError(f"a power of {power}")
        return "*".join([self._factor(base)] * int(power))

    def _print_Where(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        condition, then, otherwise = map(self._print, expr.args)
        return f"({condition} ? {then} : {otherwise})"

    def emptyPrinter(self, expr: object) -> str:  # noqa: N802 - sympy's name
        if isinstance(expr, sympy.Symbol | sympy.Integer):
            return str(expr)
        raise TypeError(f"{type(expr).__name__} in an index")


def cpp(expression: sympy.Expr, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]] | None = None) -> str:
    """Return an expression of integers in C++.

    Args:
        ranges: of the symbols; one without is from 0 on.

    Raises:
        TypeError: it has something that C++ has no short text for.
    """
    expression = sympy.sympify(expression)
    known = {one: ValueRanges(0, sympy.oo) for one in expression.free_symbols} | dict(ranges or {})
    return str(_CppPrinter(known).doprint(expression))


def python(expression: object) -> str:
    """Return an expression of integers in Python."""
    return (
        str(expression)
        if isinstance(expression, int)
        else str(PythonPrinter().doprint(product_of(sympy.sympify(expression))))
    )


def tidy(expression: sympy.Expr) -> sympy.Expr:
    """Return an expression without the larger of two sizes where it is known which that is."""
    ranges = V.graph.sizevars.shape_env.var_to_range

    def larger(*arguments: sympy.Expr) -> sympy.Expr:
        numbers = [one for one in arguments if one.is_number]
        others = [one for one in arguments if not one.is_number]
        known = {one: ranges.get(one, ValueRanges(0, sympy.oo)) for other in others for one in other.free_symbols}
        if any(bound_sympy(one, known).lower >= max(numbers, default=0) for one in others):
            return Max(*others)  # type: ignore[no-untyped-call]
        return Max(*arguments)  # type: ignore[no-untyped-call]

    return expression.replace(Max, larger) if isinstance(expression, sympy.Basic) else expression


def grouped(expression: sympy.Expr, symbols: Iterable[sympy.Symbol]) -> sympy.Expr:
    """Return a place as a sum over dimensions, each with how far apart its neighbours are as a product."""
    rest, terms = sympy.expand(expression), []
    for symbol in symbols:
        step = rest.coeff(symbol, 1)
        if step != 0 and not step.free_symbols & set(symbols):
            terms.append(symbol if step == 1 else sympy.Mul(symbol, product_of(step), evaluate=False))
            rest = sympy.expand(rest - symbol * step)
    terms += [rest] if rest != 0 or not terms else []
    return terms[0] if len(terms) == 1 else sympy.Add(*terms, evaluate=False)


@cache
def product_of(size: sympy.Expr) -> sympy.Expr:
    """Return a size as a product, where it is one."""
    return sympy.factor(size) if isinstance(size, sympy.Add) else size


def has_neighbours(expression: sympy.Expr, symbol: sympy.Symbol) -> bool:
    """Return whether neighbours along a symbol lie beside each other, forwards or backwards."""
    return coefficient(expression, symbol) in (1, -1)


def coefficient(expression: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
    """Return how far apart neighbours along a symbol are; None where that depends on where they are."""
    step = sympy.expand(expression.subs(symbol, symbol + 1) - expression)
    return None if symbol in step.free_symbols or step.has(FloorDiv, ModularIndexing) else step
