"""The derivative of a device function's expression by `value`, by the formulas that autograd has."""

from __future__ import annotations

import ast

_VALUE = "value"
_ZERO, _ONE = "accumulator_t(0)", "accumulator_t(1)"

_OF_FUNCTIONS = {
    "sigmoid": "sigmoid({x}) * (1 - sigmoid({x}))",
    "tanh": "(1 - square(tanh({x})))",
    "exp": "exp({x})",
    "log": "divide(1, {x})",
    "sqrt": "divide(0.5, sqrt({x}))",
    "square": "(2 * {x})",
    "abs": "sign({x})",
    "silu": "sigmoid({x}) * (1 + {x} * (1 - sigmoid({x})))",
    "swish": "sigmoid({x}) * (1 + {x} * (1 - sigmoid({x})))",
    "softplus": "({x} > 20 ? accumulator_t(1) : sigmoid({x}))",
    "logsigmoid": "sigmoid(-{x})",
    "mish": "(tanh(softplus({x})) + {x} * sigmoid({x}) * (1 - square(tanh(softplus({x})))))",
    "gelu": "(0.5 * (1 + erf({x} * 0.70710678118654752440)) + {x} * 0.39894228040143267794 * exp(-0.5 * square({x})))",
    "relu": "({x} <= 0 ? accumulator_t(0) : accumulator_t(1))",
    "tanhshrink": "square(tanh({x}))",
}
"""The derivatives of functions of one argument; what the others, and functions with kinks of their own, would be is
left to autograd."""


def derivative_of(text: str) -> str | None:
    """Return the derivative of an expression by `value`, in C++; None where it is left to autograd.

    Sums, differences, products, quotients and the functions of `_OF_FUNCTIONS` are followed, as Python and C++ read
    them alike; what has no `value` in it is a constant, whatever it is.
    """
    text = f"({text.strip()})"  # which may have several lines
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    return _derivative(text, tree)


def _derivative(text: str, node: ast.expr) -> str | None:
    if not any(isinstance(one, ast.Name) and one.id == _VALUE for one in ast.walk(node)):
        return _ZERO
    if isinstance(node, ast.Name):
        return _ONE
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _derivative(text, node.operand)
        return inner if inner is None or isinstance(node.op, ast.UAdd) else f"(-{inner})"
    if isinstance(node, ast.BinOp):
        left, right = _derivative(text, node.left), _derivative(text, node.right)
        if left is not None and right is not None:
            return _combined(node.op, (_as_written(text, node.left), left), (_as_written(text, node.right), right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        inner, outer = _derivative(text, node.args[0]), _OF_FUNCTIONS.get(node.func.id)
        if inner is not None and outer is not None:
            return _product(outer.format(x=_as_written(text, node.args[0])), inner)
    return None


def _combined(operation: ast.operator, left: tuple[str, str], right: tuple[str, str]) -> str | None:
    """Return the derivative of two values' sum, difference, product or quotient, each given with its derivative."""
    if isinstance(operation, ast.Add):
        return _sum(left[1], "+", right[1])
    if isinstance(operation, ast.Sub):
        return _sum(left[1], "-", right[1])
    if isinstance(operation, ast.Mult):
        return _sum(_product(right[0], left[1]), "+", _product(left[0], right[1]))
    if isinstance(operation, ast.Div):
        over = _product(f"divide({left[0]}, square({right[0]}))", right[1])
        return _sum(_ZERO if left[1] == _ZERO else f"divide({left[1]}, {right[0]})", "-", over)
    return None


def _as_written(text: str, node: ast.expr) -> str:
    return f"({ast.get_source_segment(text, node)})"


def _sum(left: str, sign: str, right: str) -> str:
    if right == _ZERO:
        return left
    if left == _ZERO:
        return right if sign == "+" else f"(-{right})"
    return f"({left} {sign} {right})"


def _product(factor: str, derivative: str) -> str:
    if derivative == _ZERO:
        return _ZERO
    return factor if derivative == _ONE else f"({factor} * {derivative})"
