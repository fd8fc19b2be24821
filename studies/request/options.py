"""The options that several commands take, and what is derived from a declaration of options.

A declaration is a pydantic model or dataclass. A field with a description, which may be its docstring, is an option:
its type and limits say what is legal, and `Text` how it is written on a command line where that does not follow.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from tunebench.studies.request import completion
from tunebench.studies.request.text import read_settings, read_sizes
from tunebench.tuner.build import CompilerName
from tunebench.tuner.empty import refusing_empty, require_said
from tunebench.tuner.errors import UserError, member_of
from tunebench.tuner.gate.boundary.box import Box
from tunebench.tuner.settings import parse_settings

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Model = TypeVar("Model")

LEGAL = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
"""The configuration of every declaration: nothing is converted silently, and a field's docstring is its help."""

OF_DATACLASS = ConfigDict(strict=True, use_attribute_docstrings=True)
"""The same of a declaration that is a dataclass."""


@dataclass(frozen=True)
class Text:
    """How an option is written on a command line.

    Attributes:
        flag: its name; None where that follows from the field's.
        metavar: stands for its value in the help.
        read: what its text means, or all its texts where it is repeatable; None where its type says it.
        once: it is not repeatable, though it has several values.
        complete: the values that a shell offers.
        flags: the help of each value's own flag, where it is written as `--VALUE`.
    """

    flag: str | None = None
    metavar: str | None = None
    read: Callable[[str, Any], object] | None = None
    once: bool = False
    complete: Callable[[str], list[str]] | None = None
    flags: Mapping[str, str] = field(default_factory=dict)


class Declaration(enum.StrEnum):
    """A declaration that a file may make of its model, as a kernel's folder does; it is part of the verdict."""

    ATOMICS = "atomics"
    REWRITES_ALGEBRA = "rewrites-algebra"
    DENSE = "dense"


Number = int | Annotated[float, Field(allow_inf_nan=False)]

Sizes = Annotated[
    Mapping[str, Number],
    Field(description="Change a constant of reference.py; repeatable."),
    Text("--size", "NAME=NUMBER", read_sizes),
]
Dtype = Annotated[
    str | None,
    Field(
        description="Convert model and inputs to float32, float64, float16 or bfloat16. "
        "Default: as the file makes them."
    ),
    Text(metavar="DTYPE"),
]
Settings = Annotated[
    Annotated[Mapping[str, str], AfterValidator(parse_settings)] | None,
    Field(
        description="What PyTorch may do in eager, such as matmul=tf32; repeatable. Default: PyTorch's own settings."
    ),
    Text("--setting", "NAME=VALUE", read_settings, complete=completion.complete_setting),
]
Device = Annotated[
    str | None,
    Field(description="cuda, cuda:INDEX or cpu. Default: a GPU if there is one."),
    Text(metavar="DEVICE"),
]
Compiler = Annotated[
    CompilerName | None,
    Field(strict=False, description="nvrtc or inline for a GPU, cpu for the CPU. Default: nvrtc on a GPU."),
    Text(metavar="NAME"),
]
InABox = Annotated[
    Box,
    Field(
        strict=False,
        title="box",
        description="Of a file, which runs shut off from other processes, the network and your folders. auto: as far "
        "as the machine allows, and the verdict says how far. require: refuse without. off: without.",
    ),
    Text(metavar="auto|require|off"),
]
Declared = Annotated[
    Sequence[Declaration],
    Field(
        title="declaration",
        description="Of a file or a model: atomics (sums come in any order), rewrites-algebra (what is not finite may "
        "be so in another way), dense (outputs may lie in memory in any order of their axes).",
    ),
    Text(
        flags={
            Declaration.ATOMICS: "Of a file: sums come in any order, so that runs differ in last bits.",
            Declaration.REWRITES_ALGEBRA: "Of a file: where the reference is not finite, the output may be so in "
            "another way.",
            Declaration.DENSE: "Of a file: the output may lie in memory in any order of its axes, without gaps.",
        }
    ),
]
HOW_WRONG = (
    "How wrong a configuration may be: tolerance, or eager for no more than eager is in full precision. "
    "Default: tf32, no more than eager is in TF32, where the settings permit that; otherwise tolerance."
)


def options_of(model: type[Any], only: Sequence[str] = ()) -> dict[str, FieldInfo]:
    """Return the options of a declaration by name: all of them, or those that are named."""
    fields: dict[str, FieldInfo] = model.__pydantic_fields__
    return {name: fields[name] for name in only or fields if fields[name].description}


def text_of(name: str, field: FieldInfo) -> Text:
    """Return how an option is written on a command line."""
    said = next((one for one in field.metadata if isinstance(one, Text)), Text())
    return replace(said, flag=said.flag or f"--{name.replace('_', '-')}")


def help_of(field: FieldInfo) -> str:
    """Return what an option is for, on one line."""
    return " ".join((field.description or "").split())


def kind_of(annotation: Any) -> tuple[type[Any], bool]:
    """Return the type of an option's value or values, and whether there may be several."""
    if get_origin(annotation) is Annotated:
        return kind_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return kind_of(next(one for one in get_args(annotation) if one is not types.NoneType))
    if get_origin(annotation) is None:
        return annotation, False
    return (str if issubclass(get_origin(annotation), Mapping) else kind_of(get_args(annotation)[0])[0]), True


def spelled(annotation: Any) -> str:
    """Return, as text, the type that a caller may give for an option: names of a closed set, and any sequence."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return spelled(inner[0])
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(spelled(one) for one in inner if one is not types.NoneType))
    if origin is not None:
        names = ", ".join(spelled(one) for one in inner if one is not ...)
        return f"{'Sequence' if origin is tuple else origin.__name__}[{names}]"
    return "str" if issubclass(annotation, enum.Enum) else str(annotation.__name__)


def given(model: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given: not None, with what text means, and members in place of their names.

    Raises:
        UserError: a text is not of its option's form, a name is none of its set, or a number is beyond its limits.
    """
    fields = options_of(model)
    said = {name: _meant(name, fields[name], value) for name, value in options.items() if value is not None}
    for name, value in said.items():
        _require_within_limits(name, fields[name], value)
    return said


def _require_within_limits(name: str, field: FieldInfo, value: Any) -> None:
    limits = [one for one in field.metadata if isinstance(one, Ge | Le)]
    if not limits:
        return
    try:
        TypeAdapter(cast(Any, Annotated[field.annotation, *limits])).validate_python(value)
    except ValidationError as wrong:
        raise UserError(_illegal(f"'{name}'", wrong)) from wrong


def _illegal(what: str, wrong: ValidationError) -> str:
    first = wrong.errors()[0]
    return f"{what} is not legal: {first['msg']} (got {first['input']!r:.80})"


def _meant(name: str, field: FieldInfo, value: Any) -> Any:
    text, kind, several = text_of(name, field), *kind_of(field.annotation)
    words = value if several and not isinstance(value, str) else [value]
    is_text = isinstance(value, str | list) and all(isinstance(one, str) for one in words)
    if text.read is not None and is_text and isinstance(value, str) is (text.once or not several):
        return text.read(str(text.flag), value)
    if not issubclass(kind, enum.Enum):
        return value
    noun = field.title or str(text.flag).removeprefix("--")
    found = [member_of(cast(type[enum.StrEnum], kind), noun, one) for one in words]
    return found if several else found[0]


def make(model: type[Model], content: Mapping[str, object], source: str, error: type[UserError] = UserError) -> Model:
    """Return a request from plain values.

    Args:
        source: where the values are from, for people.
        error: what to raise of a value that is not legal.

    Raises:
        UserError: one line on the first value that is empty or not legal.
    """
    for key, value in content.items():
        require_said(f"{source}: '{key}'", value)
    try:
        return model(**content)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("function", "constrained")))
        raise error(_illegal(f"{source}: '{key}'", wrong)) from wrong


def taking(model: type[Any], *only: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Give a function whose last parameter is `**options` the options of a declaration: in its signature and help.

    None is an option that is not given. Empty texts are refused; see `require_said`.
    """
    options = options_of(model, only)

    def with_options(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        *own, _ = inspect.signature(function).parameters.values()
        more = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=f"{spelled(field.annotation)} | None"
            )
            for name, field in options.items()
            if name not in {one.name for one in own}
        ]
        vars(function)["__signature__"] = inspect.Signature([*own, *more])
        lines = "".join(f"\n    {one.name}: {help_of(options[one.name])}" for one in more)
        function.__doc__ = f"{inspect.getdoc(function)}\n\nOptions:{lines}\n"
        vars(function)["declaration"] = (model, [one.name for one in more])
        return refusing_empty(function)

    return with_options
