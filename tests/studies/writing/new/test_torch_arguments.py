"""Every operation that `tunebench new` has a text for, with each argument that torch takes: the text says it, or there
is none."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tunebench.studies.writing.new.core import Core
from tunebench.studies.writing.new.draft import draft
from tunebench.studies.writing.new.operations import BINARY, CASTS, CLAMPS, EXTREMES, MODULES, OPERATIONS, SAME
from tunebench.studies.writing.new.reduce import _TAKES
from tunebench.studies.writing.new.trace import trace
from tunebench.tuner.reference import load_reference

FILE = """
import operator
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer_1 = {layer}
        self.number = 0.75

    def forward(self, x, y):
        {forward}

def get_inputs():
    return [torch.ones(4, 6, dtype=torch.float64), torch.ones(4, 6, dtype=torch.float64)]

def get_init_inputs():
    return []
"""

NAMES = sorted({*OPERATIONS, *BINARY, *CLAMPS, *EXTREMES, *SAME, *CASTS, *_TAKES, "gelu", "pow"} - {"identity"})
FUNCTIONS_OF = ("torch.{}(x", "nn.functional.{}(x", "torch.linalg.{}(x")
OTHERWISE = ("operator.{}(x", "x.{}(", "(x * 1).{}_(")
BY_NAME = {
    "other": ("y", "0.5", "self.number"),
    "exponent": ("y", "2", "3", "0.5"),
    "target": ("y",),
    "dim": ("-1", "0", "1", "(0, 1)", "[1]", "()"),
    "axis": ("-1",),
    "alpha": ("0.5", "2", "self.number"),
    "rounding_mode": ("'floor'", "'trunc'"),
    "approximate": ("'tanh'", "'none'"),
    "dtype": ("torch.float64", "torch.float32"),
    "memory_format": ("torch.preserve_format", "torch.contiguous_format"),
    "reduction": ("'sum'", "'none'"),
    "p": ("1", "2", "3", "'fro'"),
    "ord": ("1", "2", "0"),
    "min": ("-0.5", "y"),
    "max": ("0.5", "self.number"),
    "out": ("torch.empty_like(x)",),
    "weight": ("y",),
}
BY_TYPE = ("True", "0.25", "2")
"""What other arguments are given."""


def _arguments(name: str) -> list[str]:
    """The names of all arguments that any form of an operation has."""
    found: dict[str, None] = {}
    for place in (nn.functional, torch):
        try:
            found |= dict.fromkeys(inspect.signature(getattr(place, name)).parameters)
        except (AttributeError, TypeError, ValueError):
            continue
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        found |= dict.fromkeys(one.name for one in schema.arguments)
    found |= dict.fromkeys(("dim", "other", "alpha") if name in _TAKES or name in BINARY or name in EXTREMES else ())
    return [one for one in found if one not in ("self", "input", "args", "kwargs", "generator")]


def _calls(name: str) -> Iterator[str]:
    """Calls of an operation: with each value of each argument by its name and by position, and of two arguments.

    Methods and operators have the schemas of functions: they are asked with one value of each argument.
    """
    values = {one: BY_NAME.get(one, BY_TYPE) for one in _arguments(name)}
    named = [[f"{one}={value}" for value in options] for one, options in values.items()]
    given = ["", *itertools.chain(*named), *dict.fromkeys(itertools.chain(*values.values(), ("y, 2", "0.5, 2")))]
    pairs = [
        ", ".join(pair)
        for one, other in itertools.combinations(named, 2)
        for pair in zip(one, other[::-1], strict=False)
    ]
    once = ["", *(options[0] for options in named), *(options[0] for options in values.values()), "y, 2"]
    for place, arguments in [
        *itertools.product(FUNCTIONS_OF, [*given, *pairs]),
        *itertools.product(OTHERWISE, dict.fromkeys(once)),
    ]:
        if name == "l1_loss" and "weight" in arguments:
            continue  # torch does not tell a trace of it; what is written is run, and found to be something else
        joint = ", " if arguments and not place.endswith("(") else ""
        yield f"{place.format(name.removeprefix('linalg_'))}{joint}{arguments})"


def _eager(expression: str, layer: nn.Module | None = None) -> Any:
    """What torch makes of it; None where torch does not take it. Also whether it changes `x`."""
    import operator

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 6, generator=generator, dtype=torch.float64) * scale for scale in (2, 1))
    x, y = x + 0.01, y.abs() + 0.5
    before = x.clone()
    names = {"torch": torch, "nn": nn, "operator": operator, "x": x, "y": y, "self": _Self(layer)}
    try:
        made = eval(expression, names)
    except (TypeError, RuntimeError, AttributeError, ValueError, IndexError, NotImplementedError):
        return None
    made = made[0] if isinstance(made, tuple) else made
    if not isinstance(made, torch.Tensor) or isinstance(made, bool) or not made.is_floating_point():
        return None
    return SimpleNamespace(made=made, before=before, y=y, changed=not torch.equal(x, before))


class _Self:
    def __init__(self, layer: nn.Module | None) -> None:
        self.layer_1, self.number, self.training = layer, 0.75, False


def _core(folder: Path, expression: str, layer: str = "nn.Identity()") -> Core | None:
    """The block that has all of a forward; None where there is none."""
    file = folder / "problem.py"
    is_of_two = any(name in expression for name in (".max(", ".min(")) and "dim" in expression
    forward = f"return ({expression}){'[0]' if is_of_two else ''}"
    file.write_text(FILE.format(forward=forward, layer=layer), encoding="utf-8")
    try:
        cores = draft(trace(load_reference(file)), None).cores
    except Exception as error:  # noqa: BLE001 - such as a call that torch refuses without values
        pytest.fail(f"{expression}: {error}")
    return next((core for core in cores if core.is_whole), None)


FUNCTIONS = {
    **{name: getattr(torch, name) for name in OPERATIONS if hasattr(torch, name)},
    **{name: getattr(nn.functional, name) for name in OPERATIONS if hasattr(nn.functional, name)},
    "swish": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "clamp": lambda x, low, high: torch.minimum(torch.maximum(x, _double(low)), _double(high)),
    "min": lambda x, y: torch.minimum(_double(x), _double(y)),
    "max": lambda x, y: torch.maximum(_double(x), _double(y)),
    "pow": lambda x, y: torch.pow(_double(x), y),
    "square": lambda x: x * x,
    "zero_if_infinite": lambda x: x.masked_fill(x.isinf(), 0),
}


def _double(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def _evaluated(text: str, names: dict[str, Any]) -> Any:
    """What a device function's text says, with torch's functions in the place of `functions.cuh`'s."""
    *statements, last = [one.strip().removeprefix("auto ") for one in text.rstrip(";").split(";")]
    last = re.sub(r"^return ", "", last)
    last = re.sub(r"^(.*) \? (.*) : (.*)$", r"torch.where(\1, \2, \3)", last)
    here = {**FUNCTIONS, "torch": torch, **names}
    for statement in statements:
        exec(statement, here)
    return eval(last, here)


def _value(core: Core, x: torch.Tensor, y: torch.Tensor, layer: nn.Module | None) -> torch.Tensor:
    """What a kernel computes."""
    attributes = dict(core.attributes)
    names: dict[str, Any] = {"x": x, "y": y}
    for attribute in ("scalars", "per_tensor"):
        given: Any = attributes.get(attribute, ())
        for name, path in given.items() if isinstance(given, dict) else zip(given, given, strict=True):
            names[name] = 0.75 if path == "number" else getattr(layer, path.removeprefix("layer_1."))
    dimensions: Any = attributes.get("row_dimensions", 1)
    rows = tuple(range(2 - dimensions, 2))
    names["features"] = _double(24 if dimensions == 2 else 6)
    reduce = {"Sum": torch.sum, "Max": torch.amax, "Min": torch.amin}
    reductions: Any = attributes.get("reductions", {})
    for name, one in reductions.items():
        elements = _evaluated(one.text, names) + torch.zeros_like(x)
        if one.kind == "Product":
            names[name] = elements.flatten(2 - dimensions).prod(-1).reshape([4, 1] if dimensions == 1 else [1, 1])
        else:
            names[name] = reduce[one.kind](elements, rows, keepdim=True)
    return _evaluated(str(attributes["function"]), names)


def _check(folder: Path, name: str, calls: Iterator[str], layer: str = "nn.Identity()") -> int:
    """Compare each call that torch takes with the text for it; the number of those that have one."""
    made = eval(layer, {"nn": nn})
    translated = 0
    for call in calls:
        eager = _eager(call, made)
        if eager is None:
            continue
        core = _core(folder, call, layer)
        if core is None:
            continue
        assert not eager.changed, f"{name}: {call} changes its input, and the kernel does not"
        translated += 1
        found = _value(core, eager.before, eager.y, made)
        wanted = eager.made
        assert wanted.dtype == torch.float64, f"{name}: {call} is {wanted.dtype}"
        torch.testing.assert_close(
            (found + torch.zeros(1, dtype=torch.float64)).reshape(-1)[: wanted.numel()],
            wanted.reshape(-1),
            equal_nan=True,
            msg=lambda text, call=call, core=core: f"{name}: {call} became {core.attributes}: {text}",
        )
    return translated


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_in_the_text_or_there_is_none(name: str, tmp_path: Path) -> None:
    count = _check(tmp_path, name, _calls(name))
    is_nothing = name in SAME or name in CASTS
    assert is_nothing or count or not any(_eager(call) for call in _calls(name)), f"no form of {name} has a text"


LAYERS = [
    *(("nn.LeakyReLU(0.3)", "nn.ELU(0.7)", "nn.CELU(0.6)", "nn.Hardtanh(-0.4, 0.6)", "nn.Softplus(2.0, 1.5)")),
    *(
        (
            "nn.Hardshrink(0.8)",
            "nn.Softshrink(0.3)",
            "nn.GELU('tanh')",
            "nn.GELU()",
            "nn.Softmax(1)",
            "nn.LogSoftmax(-1)",
        )
    ),
    *(("nn.Softmax(0)", "nn.Dropout(0.0)")),
    *(f"nn.{one.__name__}()" for one in MODULES if one not in (nn.Softmax, nn.LogSoftmax, nn.Identity)),
]


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_every_setting_of_a_layer_is_in_the_text(layer: str, tmp_path: Path) -> None:
    calls = ["self.layer_1(x)", "self.layer_1(x) + 1"]
    count = _check(tmp_path, layer, iter(calls), layer)
    assert count == (0 if layer == "nn.Softmax(0)" else 1 if layer.startswith("nn.Dropout") else 2)
