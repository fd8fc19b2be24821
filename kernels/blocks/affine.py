"""Test whether a device function's expression is affine in `value`, so that a normalisation behind it can be folded."""

from __future__ import annotations

import ast
from collections.abc import Collection

_VALUE = "value"


def affine_form(text: str, constants: Collection[str]) -> tuple[str, str] | None:
    """Return multiplier and offset of an expression that is multiplier · value + offset, in C++; None where it is not.

    Products, quotients, sums and differences are followed, as Python and C++ read them alike; what has no `value` in it
    stays as it is written.

    Args:
        constants: the names that have one value for each feature, or one in all.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    if not names - called <= {_VALUE, *constants}:
        return None
    return _form(text.strip(), tree)


def _form(text: str, node: ast.expr) -> tuple[str, str] | None:
    if not any(isinstance(one, ast.Name) and one.id == _VALUE for one in ast.walk(node)):
        return _ZERO, f"accumulator_t({ast.get_source_segment(text, node)})"
    if isinstance(node, ast.Name):
        return _ONE, _ZERO
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _form(text, node.operand)
        sign = "-" if isinstance(node.op, ast.USub) else ""
        return inner and (_signed(sign, inner[0]), _signed(sign, inner[1]))
    if isinstance(node, ast.BinOp):
        left, right = _form(text, node.left), _form(text, node.right)
        return None if left is None or right is None else _combined(node.op, left, right)
    return None


def _combined(operation: ast.operator, left: tuple[str, str], right: tuple[str, str]) -> tuple[str, str] | None:
    """Return the form of two forms' sum, difference, product or quotient; None where it is none."""
    if isinstance(operation, ast.Add | ast.Sub):
        sign = "+" if isinstance(operation, ast.Add) else "-"
        return _sum(left[0], sign, right[0]), _sum(left[1], sign, right[1])
    if isinstance(operation, ast.Mult) and _ZERO in (left[0], right[0]):
        (multiplier, offset), factor = (right, left[1]) if left[0] == _ZERO else (left, right[1])
        return _product(multiplier, factor), _product(offset, factor)
    if isinstance(operation, ast.Div) and right[0] == _ZERO:
        return f"({left[0]} / {right[1]})", _ZERO if left[1] == _ZERO else f"({left[1]} / {right[1]})"
    return None


_ZERO, _ONE = "accumulator_t(0)", "accumulator_t(1)"


def _signed(sign: str, term: str) -> str:
    return term if term == _ZERO or not sign else f"({sign}{term})"


def _sum(left: str, sign: str, right: str) -> str:
    if right == _ZERO:
        return left
    return _signed(sign.replace("+", ""), right) if left == _ZERO else f"({left} {sign} {right})"


def _product(term: str, factor: str) -> str:
    if term == _ZERO:
        return _ZERO
    return factor if term == _ONE else f"({term} * {factor})"
