"""Numbers that know what of a module they are, so that a trace shows `scale` where it would show 2.0."""

from __future__ import annotations

import functools
import keyword
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_MATH = ("sqrt", "exp", "log", "log2", "log10", "pow", "sin", "cos", "tanh")
_SIGNS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "truediv": ("/", operator.truediv),
    "floordiv": ("//", operator.floordiv),
    "pow": ("**", operator.pow),
}


class NamedNumber(float):
    """A module's number, or arithmetic on some.

    Attributes:
        path: of the attribute, such as `norm.eps`; empty of the result of arithmetic.
        expression: what makes it in a method of the module, such as `self.norm.eps` or `(1 - self.beta)`.
    """

    path: str
    expression: str

    def __new__(cls, value: float, path: str, expression: str = "") -> NamedNumber:
        made = super().__new__(cls, value)
        made.path = path
        made.expression = expression or f"self.{path}"
        return made


class NamedInteger(int):
    """As `NamedNumber`, of a whole number: one that shapes and dimensions can be made of."""

    path: str
    expression: str

    def __new__(cls, value: int, path: str, expression: str = "") -> NamedInteger:
        made = super().__new__(cls, value)
        made.path = path
        made.expression = expression or f"self.{path}"
        return made


def path_of(value: object) -> str | None:
    """The attribute that a number is; None of any other value."""
    return (value.path or None) if isinstance(value, NamedNumber | NamedInteger) else None


def expression_of(value: object) -> str | None:
    """What makes a number of a module's attributes, as Python; None of any other value."""
    return value.expression if isinstance(value, NamedNumber | NamedInteger) else None


_MADE: dict[type, Callable[..., object]] = {float: NamedNumber, int: NamedInteger}


def _named(value: Any, expression: str) -> Any:
    made = _MADE.get(type(value))
    return value if made is None else made(value, "", expression)


def _plain(value: Any) -> Any:
    """The number itself, with whose arithmetic nothing is named."""
    return float(value) if isinstance(value, NamedNumber) else int(value) if isinstance(value, NamedInteger) else value


def _with_arithmetic(cls: Any) -> None:
    for name, (sign, apply) in _SIGNS.items():

        def forward(self: Any, other: Any, sign: str = sign, apply: Any = apply) -> Any:
            if not isinstance(other, int | float):
                return NotImplemented
            return _named(apply(_plain(self), _plain(other)), f"({self.expression} {sign} {_text(other)})")

        def backward(self: Any, other: Any, sign: str = sign, apply: Any = apply) -> Any:
            if not isinstance(other, int | float):
                return NotImplemented
            return _named(apply(_plain(other), _plain(self)), f"({_text(other)} {sign} {self.expression})")

        setattr(cls, f"__{name}__", forward)
        setattr(cls, f"__r{name}__", backward)
    cls.__neg__ = lambda self: _named(-_plain(self), f"(-{self.expression})")


def _text(number: Any) -> str:
    return expression_of(number) or (repr(number) if math.isfinite(number) else f'float("{number}")')


_with_arithmetic(NamedNumber)
_with_arithmetic(NamedInteger)


def attribute_text(model: nn.Module, path: str) -> str:
    """What stands at a path, in a method of the module: parts whose names are no identifiers have an index."""
    text, place = "self", ""
    for part in path.split("."):
        parent, place = model.get_submodule(place), f"{place}.{part}".removeprefix(".")
        if part.isidentifier() and not keyword.iskeyword(part):
            text += f".{part}"
        elif isinstance(parent, _LISTS) and part.isdecimal() and _at(parent, int(part)) is getattr(parent, part):
            text += f"[{part}]"
        else:
            text = f'getattr({text}, "{part}")'
    return text


_LISTS = (nn.Sequential, nn.ModuleList, nn.ParameterList)


def _at(parent: Any, index: int) -> object:
    return parent[index] if index < len(parent) else None


@contextmanager
def named_numbers(model: nn.Module) -> Iterator[None]:
    """Within it, numbers that are attributes of the module, or of one in it that is no layer of torch's, are named.

    Layers of torch's keep theirs: nobody computes with them but the layer.
    """
    replaced: list[tuple[nn.Module, str, object]] = []
    for place, module in model.named_modules():
        if type(module).__module__.startswith("torch.nn."):
            continue
        for name, value in list(vars(module).items()):
            if type(value) in _MADE and not name.startswith("_"):
                replaced.append((module, name, value))
                path = f"{place}.{name}" if place else name
                vars(module)[name] = _MADE[type(value)](value, path, attribute_text(model, path))
    functions = {name: getattr(math, name) for name in _MATH}
    for name, function in functions.items():
        setattr(math, name, _naming(name, function))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(math, name, function)
        for module, name, value in replaced:
            vars(module)[name] = value


def _naming(name: str, function: Callable[..., float]) -> Callable[..., Any]:
    """A function of `math` whose result is named where an argument is."""

    @functools.wraps(function)
    def named(*arguments: Any) -> Any:
        value = function(*arguments)
        if not any(expression_of(one) for one in arguments):
            return value
        return _named(value, f"math.{name}({', '.join(_text(one) for one in arguments)})")

    return named
