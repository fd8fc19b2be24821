"""Torch's pointwise operations as text of a device function: the functions of `functions.cuh`, and arithmetic."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Operation:
    """A pointwise operation of one value and numbers.

    Attributes:
        text: with `{x}` for the value and the names of numbers in braces.
        takes: all arguments that torch's forms of it have, the value first; those that the text does not name have to
            be at their defaults.
    """

    text: str
    takes: inspect.Signature


def taking(arguments: str) -> inspect.Signature:
    """Return the signature with these arguments, as Python writes them."""
    return inspect.signature(eval(f"lambda {arguments}: None"))


def bound(takes: inspect.Signature, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names, defaults filled in.

    Raises:
        TypeError: the call has an argument that the signature has not.
    """
    made = takes.bind(*arguments, **{_ALIASES.get(name, name): one for name, one in named.items()})
    made.apply_defaults()
    return dict(made.arguments)


def other_than_default(takes: inspect.Signature, given: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return the arguments beside the known ones that are not at their defaults."""
    return [
        name for name, one in given.items() if name not in known and not is_default(one, takes.parameters[name].default)
    ]


def is_default(value: object, default: object) -> bool:
    """Whether an argument is an operation's default, and nothing made of attributes that somebody may change."""
    return type(value) in (type(default), int, float, bool) and value == default


_ALIASES = {"axis": "dim", "keepdims": "keepdim"}
_ALONE = taking("x")
_IN_PLACE = taking("x, inplace=False")


def _plain(takes: inspect.Signature, names: str) -> dict[str, Operation]:
    return {name: Operation(f"{name}({{x}})", takes) for name in names.split()}


OPERATIONS: Mapping[str, Operation] = {
    **_plain(_ALONE, "sigmoid tanh exp log sqrt rsqrt abs square softsign logsigmoid tanhshrink erf expm1 log1p"),
    **_plain(_ALONE, "floor ceil trunc sin cos sign"),
    **_plain(_IN_PLACE, "relu mish selu hardsigmoid hardswish relu6"),
    "silu": Operation("swish({x})", _IN_PLACE),
    "reciprocal": Operation("1 / {x}", _ALONE),
    "neg": Operation("-{x}", _ALONE),
    "negative": Operation("-{x}", _ALONE),
    "leaky_relu": Operation("leaky_relu({x}, {negative_slope})", taking("x, negative_slope=0.01, inplace=False")),
    "elu": Operation("elu({x}, {alpha})", taking("x, alpha=1.0, inplace=False")),
    "celu": Operation("celu({x}, {alpha})", taking("x, alpha=1.0, inplace=False")),
    "softplus": Operation("softplus({x}, {beta}, {threshold})", taking("x, beta=1.0, threshold=20.0")),
    "hardtanh": Operation("clamp({x}, {min_val}, {max_val})", taking("x, min_val=-1.0, max_val=1.0, inplace=False")),
    "hardshrink": Operation("hardshrink({x}, {lambd})", taking("x, lambd=0.5")),
    "softshrink": Operation("softshrink({x}, {lambd})", taking("x, lambd=0.5")),
}
"""By the names of torch's functions and methods; of `torch.nn.functional` too."""

GELU = taking("x, approximate='none'")
POWER = taking("x, exponent")
CLAMPS: Mapping[str, inspect.Signature] = {
    "clamp": taking("x, min=None, max=None"),
    "clip": taking("x, min=None, max=None"),
    "clamp_min": taking("x, min"),
    "clamp_max": taking("x, max"),
}

SAME: Mapping[str, inspect.Signature] = {
    "clone": taking("x, *, memory_format=None"),
    "contiguous": taking("x, memory_format=None"),
    "detach": _ALONE,
    "identity": _ALONE,
    "alias": _ALONE,
    "pos": _ALONE,
    "positive": _ALONE,
}
"""Operations whose result is their argument, in memory as it was: another layout is no text's to make."""

CASTS = ("to", "float", "double", "half", "bfloat16", "type", "type_as")
"""Operations that change the type alone."""

_SUM, _QUOTIENT, _PAIR = taking("x, other, *, alpha=1"), taking("x, other, *, rounding_mode=None"), taking("x, other")
BINARY: Mapping[str, tuple[str, inspect.Signature]] = {
    "add": ("+", _SUM),
    "sub": ("-", _SUM),
    "subtract": ("-", _SUM),
    "rsub": ("-", _SUM),
    "mul": ("*", _PAIR),
    "multiply": ("*", _PAIR),
    "div": ("/", _QUOTIENT),
    "divide": ("/", _QUOTIENT),
    "truediv": ("/", _PAIR),
    "true_divide": ("/", _PAIR),
}
"""Arithmetic, by the names of functions, methods and operators (without underscores in front and behind)."""

EXTREMES: Mapping[str, str] = {"min": "min", "max": "max", "minimum": "min", "maximum": "max"}
PAIR = _PAIR

_NAMESAKES: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Tanh, nn.SiLU, nn.GELU, nn.Mish, nn.Softplus, nn.Softsign, nn.ELU, nn.CELU),
    *(nn.SELU, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Tanhshrink, nn.Hardshrink, nn.Softshrink),
    *(nn.Identity, nn.Softmax),
)
MODULES: Mapping[type[nn.Module], str] = {
    **{layer: layer.__name__.lower() for layer in _NAMESAKES},
    nn.LeakyReLU: "leaky_relu",
    nn.LogSoftmax: "log_softmax",
}
"""Layers that are one of the operations; their attributes have its parameters' names."""
