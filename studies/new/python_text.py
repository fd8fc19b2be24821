"""Nodes of a trace as lines of Python: what stays torch's own in front of a kernel, and behind it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from tunebench.studies.new.named_numbers import expression_of
from tunebench.studies.new.trace import function_name, number_of

_SIGNS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.pow: "**",
    operator.matmul: "@",
    operator.iadd: "+",
    operator.isub: "-",
    operator.imul: "*",
    operator.itruediv: "/",
}

_FORMS = {operator.getitem: "{0}[{1}]", operator.neg: "-{0}", getattr: "{0}.{name}"}


class UnwritableError(Exception):
    """A node that no line of Python says; the message says what it is."""


def lines_of(nodes: Sequence[fx.Node], model: nn.Module, result: fx.Node, names: Mapping[fx.Node, str]) -> list[str]:
    """The body of a function that computes a node's value.

    Args:
        nodes: what it takes, in order.
        names: of the values that are there already: arguments, and the kernel's own.

    Raises:
        UnwritableError: one of them cannot be written.
    """
    known = dict(names)
    lines: list[str] = []
    for node in nodes:
        if node.op == "get_attr":
            number = number_of(_attribute(model, str(node.target)))
            known[node] = f"self.{node.target}" if number is None else _constant(number)
            continue
        text = _call(node, known)
        if node is result:
            return [*lines, f"return {text}"]
        known[node] = node.name
        lines.append(f"{node.name} = {text}")
    return [*lines, f"return {known[result]}"]


def _call(node: fx.Node, known: Mapping[fx.Node, str]) -> str:
    texts = [_argument(one, known) for one in node.args]
    named = [f"{name}={_argument(one, known)}" for name, one in node.kwargs.items() if one is not None]
    if node.op == "call_module":
        return f"self.{node.target}({', '.join([*texts, *named])})"
    if node.op == "call_method":
        return f"{texts[0]}.{node.target}({', '.join([*texts[1:], *named])})"
    target: Any = node.target
    if target in _SIGNS:
        return f"{texts[0]} {_SIGNS[target]} {texts[1]}"
    if target in _FORMS:
        return _FORMS[target].format(*texts, name=node.args[-1])
    name = function_name(target)
    if name is None:
        raise UnwritableError(str(target))
    return f"{name}({', '.join([*texts, *named])})"


def _argument(argument: Any, known: Mapping[fx.Node, str]) -> str:
    if isinstance(argument, fx.Node):
        if argument not in known:
            raise UnwritableError(f"a value of {argument.name}")
        return known[argument]
    if isinstance(argument, tuple | list):
        texts = ", ".join(_argument(one, known) for one in argument)
        return f"[{texts}]" if isinstance(argument, list) else f"({texts},)"
    return _constant(argument)


def _constant(value: Any) -> str:
    if (expression := expression_of(value)) is not None:
        return expression
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return repr(value)
    if isinstance(value, slice):
        return f"slice({_constant(value.start)}, {_constant(value.stop)}, {_constant(value.step)})"
    raise UnwritableError(repr(value))


def _attribute(model: nn.Module, path: str) -> Any:
    place, _, name = path.rpartition(".")
    return getattr(model.get_submodule(place), name)
