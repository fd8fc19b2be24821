"""What torch's pointwise operations are in a device function: the functions of `functions.cuh`, and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Operation:
    """A pointwise operation of one value and numbers.

    Attributes:
        text: with `{x}` for the value and the names of parameters in braces.
        parameters: by name, in torch's order, with their defaults.
    """

    text: str
    parameters: Mapping[str, Any]


def _plain(*names: str) -> dict[str, Operation]:
    return {name: Operation(f"{name}({{x}})", {}) for name in names}


OPERATIONS: Mapping[str, Operation] = {
    **_plain("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "square", "mish", "selu", "hardsigmoid"),
    **_plain("hardswish", "relu6", "softsign", "logsigmoid", "tanhshrink", "erf", "expm1", "log1p", "floor", "ceil"),
    **_plain("trunc", "sin", "cos", "sign"),
    "silu": Operation("swish({x})", {}),
    "reciprocal": Operation("1 / {x}", {}),
    "leaky_relu": Operation("leaky_relu({x}, {negative_slope})", {"negative_slope": 0.01}),
    "elu": Operation("elu({x}, {alpha})", {"alpha": 1.0}),
    "celu": Operation("celu({x}, {alpha})", {"alpha": 1.0}),
    "softplus": Operation("softplus({x}, {beta}, {threshold})", {"beta": 1.0, "threshold": 20.0}),
    "hardtanh": Operation("clamp({x}, {min_val}, {max_val})", {"min_val": -1.0, "max_val": 1.0}),
    "hardshrink": Operation("hardshrink({x}, {lambd})", {"lambd": 0.5}),
    "softshrink": Operation("softshrink({x}, {lambd})", {"lambd": 0.5}),
}
"""By the names of torch's functions and methods; of `torch.nn.functional` too."""

IGNORED = ("inplace", "dim_order", "memory_format")
"""Arguments that change nothing of the values."""

SAME = ("clone", "detach", "contiguous", "identity", "alias")
"""Operations whose result is their argument."""

BINARY: Mapping[str, str] = {
    "add": "+",
    "sub": "-",
    "subtract": "-",
    "mul": "*",
    "multiply": "*",
    "truediv": "/",
    "div": "/",
    "divide": "/",
    "iadd": "+",
    "isub": "-",
    "imul": "*",
    "itruediv": "/",
}
"""Arithmetic, by the names of functions, methods and operators (without underscores in front and behind)."""

EXTREMES: Mapping[str, str] = {"min": "min", "max": "max", "minimum": "min", "maximum": "max"}

MODULES: Mapping[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.LeakyReLU: "leaky_relu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.Mish: "mish",
    nn.Softplus: "softplus",
    nn.Softsign: "softsign",
    nn.ELU: "elu",
    nn.CELU: "celu",
    nn.SELU: "selu",
    nn.Hardtanh: "hardtanh",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Hardswish: "hardswish",
    nn.LogSigmoid: "logsigmoid",
    nn.Tanhshrink: "tanhshrink",
    nn.Hardshrink: "hardshrink",
    nn.Softshrink: "softshrink",
    nn.Identity: "identity",
}
"""Layers that are one of the operations; their attributes have its parameters' names."""
