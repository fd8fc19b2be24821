"""Device functions that cuDNN's graph API can compute: expressions of arithmetic and of a few functions.

    steps_of("(min(constant, value) + bias) * factor")

An expression in CUDA C++ of names, numbers, `+ - * /` and calls reads the same in Python, whose parser is asked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_CALLS = {
    "relu": "max(x, 0)",
    "clamp": "min(max(x, y), z)",
    "square": "x * x",
    "silu": "x * sigmoid(x)",
    "swish": "x * sigmoid(x)",
    "relu6": "min(max(x, 0), 6)",
    "hardsigmoid": "min(max(x + 3, 0), 6) / 6",
    "hardswish": "x * min(max(x + 3, 0), 6) / 6",
}
"""Functions of functions.cuh, by those below."""
_NODES = {"sigmoid": 1, "tanh": 1, "min": 2, "max": 2}
"""Functions that are nodes of a graph, or a few of them, by the number of their arguments."""


class Step(NamedTuple):
    """An operation on what other operations make, on operands by their names, and on numbers."""

    operation: str
    operands: tuple[Step | str | float, ...]


class _NotStepsError(Exception):
    pass


def steps_of(text: str, scalars: Iterable[str]) -> Step | None:
    """Return the operations of a device function; None where a graph cannot compute it.

    Args:
        scalars: which of its names are the same number for all elements.
    """
    try:
        found = _steps(ast.parse(text.strip(), mode="eval").body, {}, frozenset(scalars))
    except (SyntaxError, ValueError, _NotStepsError):
        return None
    return found if isinstance(found, Step) else None


def numbers_of(step: Step) -> list[float]:
    """Return the numbers that are written in the function, each once."""
    found: dict[float, None] = {}
    for one in step.operands:
        found.update(dict.fromkeys(numbers_of(one) if isinstance(one, Step) else ()))
        found.update({one: None} if isinstance(one, float) else {})
    return [*found]


def add_to(graph: Any, cudnn: Any, step: Step, known: Mapping[str | float, Any]) -> Any:
    """Add the operations to a graph; the node of what comes out.

    Args:
        cudnn: the package.
        known: the nodes of names and numbers.
    """
    made: dict[Step, Any] = {}

    def node(one: Step | str | float) -> Any:
        if not isinstance(one, Step):
            return known[one]
        if one not in made:
            made[one] = operation(one.operation, [node(operand) for operand in one.operands])
        return made[one]

    def operation(name: str, nodes: list[Any]) -> Any:
        if name not in ("min", "max"):
            return getattr(graph, name)(*nodes)
        # Not graph.min, which takes the number where a value is NaN; so the number must be none.
        number, value = nodes
        beyond = graph.cmp_gt(value, number) if name == "min" else graph.cmp_lt(value, number)
        return graph.binary_select(number, value, beyond.set_data_type(cudnn.data_type.BOOLEAN))

    return node(step)


def _steps(node: ast.expr, names: Mapping[str, Step | str | float], scalars: frozenset[str]) -> Step | str | float:
    """Return the operations of an expression, in which these names stand for others."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _steps(node.operand, names, scalars)
        return -inner if isinstance(inner, float) else Step("sub", (0.0, inner))
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        sides = _steps(node.left, names, scalars), _steps(node.right, names, scalars)
        if not all(isinstance(side, float) for side in sides):  # else C++ might divide integers
            return Step(_ARITHMETIC[type(node.op)], sides)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        arguments = tuple(_steps(one, names, scalars) for one in node.args)
        if _NODES.get(node.func.id) == len(arguments):
            return Step(node.func.id, arguments if len(arguments) == 1 else _number_first(arguments, scalars))
        if (known := _CALLS.get(node.func.id)) is not None and len(arguments) == (3 if "z" in known else 1):
            meant = dict(zip("xyz", arguments, strict=False))
            return _steps(ast.parse(known, mode="eval").body, meant, scalars)
    raise _NotStepsError


def _number_first(sides: tuple[Step | str | float, ...], scalars: frozenset[str]) -> tuple[Step | str | float, ...]:
    """Return a minimum's or maximum's operands, first the number that is the same for all elements, then the value."""
    numbers = [side for side in sides if isinstance(side, float) or side in scalars]
    if len(numbers) != 1:
        raise _NotStepsError
    return sides if sides[0] is numbers[0] else sides[::-1]
