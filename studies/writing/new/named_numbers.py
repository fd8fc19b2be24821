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


class Named:
    """A module's number, or arithmetic on some.

    Attributes:
        path: of the attribute, such as `norm.eps`; empty of the result of arithmetic.
        expression: what makes it in a method of the module, such as `self.norm.eps` or `(1 - self.beta)`.
    """

    path: str
    expression: str

    def __new__(cls, value: float, path: str, expression: str = "") -> Any:
        made: Any = super().__new__(cls, value)  # type: ignore[call-arg]
        made.path = path
        made.expression = expression or f"self.{path}"
        return made

    def __neg__(self) -> Any:
        return _named(-plain(self), f"(-{self.expression})")


def _sign(sign: str, apply: Callable[[Any, Any], Any], *, swapped: bool) -> Callable[[Named, Any], Any]:
    """A method that computes with another number, which stands in front where it is swapped."""

    def method(self: Named, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        left, right = (other, self) if swapped else (self, other)
        return _named(apply(plain(left), plain(right)), f"({_text(left)} {sign} {_text(right)})")

    return method


for _name, (_text_of_sign, _apply) in _SIGNS.items():
    setattr(Named, f"__{_name}__", _sign(_text_of_sign, _apply, swapped=False))
    setattr(Named, f"__r{_name}__", _sign(_text_of_sign, _apply, swapped=True))


class NamedNumber(Named, float):
    """Such a number with a fraction."""


class NamedInteger(Named, int):
    """Such a whole number, one that shapes and dimensions can be made of."""


_MADE: dict[type, Callable[..., object]] = {float: NamedNumber, int: NamedInteger}


def path_of(value: object) -> str | None:
    """The attribute that a number is; None of any other value."""
    return (value.path or None) if isinstance(value, Named) else None


def expression_of(value: object) -> str | None:
    """Return the Python expression that makes a number of a module's attributes; None of any other value."""
    return value.expression if isinstance(value, Named) else None


def _named(value: Any, expression: str) -> Any:
    made = _MADE.get(type(value))
    return value if made is None else made(value, "", expression)


def plain(value: Any) -> Any:
    """Return the number itself, with whose arithmetic nothing is named; any other value as it is."""
    return float(value) if isinstance(value, NamedNumber) else int(value) if isinstance(value, NamedInteger) else value


def _text(number: Any) -> str:
    return expression_of(number) or (repr(number) if math.isfinite(number) else f'float("{number}")')


def attribute_text(model: nn.Module, path: str) -> str:
    """Return Python that reads a path in a method of a module; non-identifiers get an index or `getattr`."""
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
