"""Nodes of a trace as lines of Python: what stays torch's own in front of a kernel, and behind it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from tunebench.studies.writing.new.named_numbers import attribute_text, expression_of
from tunebench.studies.writing.new.trace import attribute_of, function_name, number_of

_SIGNS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}

_FORMS = {
    operator.neg: "-{0}",
    operator.pos: "+{0}",
    operator.invert: "~{0}",
    operator.abs: "abs({0})",
    getattr: "{0}.{name}",
}


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
            number = number_of(attribute_of(model, str(node.target)))
            known[node] = attribute_text(model, str(node.target)) if number is None else _constant(number)
            continue
        text = _call(node, model, known)
        if node is result:
            return [*lines, f"return {text}"]
        known[node] = node.name
        lines.append(f"{node.name} = {text}")
    return [*lines, f"return {known[result]}"]


def _call(node: fx.Node, model: nn.Module, known: Mapping[fx.Node, str]) -> str:
    modes = node.meta.get("training", ())
    texts = [_mode(one) if at in modes else _argument(one, known) for at, one in enumerate(node.args)]
    named = [f"{name}={_mode(one) if name in modes else _argument(one, known)}" for name, one in node.kwargs.items()]
    if node.op == "call_module":
        return f"{attribute_text(model, str(node.target))}({', '.join([*texts, *named])})"
    if node.op == "call_method":
        return f"{texts[0]}.{node.target}({', '.join([*texts[1:], *named])})"
    target: Any = node.target
    if target in _SIGNS:
        return f"{texts[0]} {_SIGNS[target]} {texts[1]}"
    if target is operator.getitem:
        return f"{texts[0]}[{_index(node.args[1], known)}]"
    if target in _FORMS:
        return _FORMS[target].format(*texts, name=node.args[-1])
    name = function_name(target)
    if name is None:
        raise UnwritableError(f"the function {getattr(target, '__name__', target)}")
    return f"{name}({', '.join([*texts, *named])})"


def _mode(in_eval: object) -> str:
    """An argument that is whether the model trains, or does not."""
    return "not self.training" if in_eval else "self.training"


def _argument(argument: Any, known: Mapping[fx.Node, str]) -> str:
    if isinstance(argument, fx.Node):
        if argument not in known:
            raise UnwritableError(f"a value of {argument.name}")
        return known[argument]
    if isinstance(argument, tuple | list):
        texts = ", ".join(_argument(one, known) for one in argument)
        if isinstance(argument, list):
            return f"[{texts}]"
        return f"({texts},)" if argument else "()"
    if isinstance(argument, slice):
        return f"slice({', '.join(_argument(one, known) for one in (argument.start, argument.stop, argument.step))})"
    return _constant(argument)


def _index(index: Any, known: Mapping[fx.Node, str]) -> str:
    """Return the text of an index, as it stands between brackets."""
    if isinstance(index, tuple) and index:
        return ", ".join(_index(one, known) for one in index) + ("," if len(index) == 1 else "")
    if not isinstance(index, slice):
        return _argument(index, known)
    first, last, step = ("" if one is None else _argument(one, known) for one in (index.start, index.stop, index.step))
    return f"{first}:{last}" + (f":{step}" if step else "")


def _constant(value: Any) -> str:
    if (expression := expression_of(value)) is not None:
        return expression
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if type(value) in (int, float) and value < 0:
        return f"({value!r})"
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.memory_format):
        return repr(value)
    if value is Ellipsis:
        return "..."
    raise UnwritableError(f"the argument {value!r}")
