"""The one codec between frozen dataclasses and JSON documents: a document has the fields of its dataclass.

Whatever is recorded of a trial is a dataclass, of the engine or of `db.entries.entry`, and its fields are all that is
to be said: from their types follow the validation of documents, their serialization, and the columns of flat files. A
field that a dataclass gets is in every database and file from then on.

A document is data from anywhere. Unknown names are refused, since they would be lost; what the tables' constraints
would refuse is refused here, by the field's type and by its name, which has its unit.
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, SchemaSerializer, SchemaValidator, ValidationError, core_schema

from tunebench.db.entries.strict_json import EntryError
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.result import Conditions, ErrorFigures, Ratio, TrialResult

_LARGEST = 2**63 - 1
# Room above it, so that the next trial of the same study has a number too.
_LARGEST_NUMBER = 10**9
_LONGEST_NAME = 10_000
_LONGEST_TEXT = 32_000_000
_MOST_PARTS = 100_000

_INLINE = (TrialResult, Conditions, ErrorFigures)
"""Dataclasses whose fields stand among those of the dataclass that has one."""

_RENAMED: dict[tuple[type, str], str] = {(Ratio, "value"): "ratio"}
"""Names in documents that differ from the field's."""

_NOT_RECORDED: dict[tuple[type, str], object] = {
    (Device, "index"): 0,  # where a card sits today is not what it is
    (TrialResult, "build"): None,  # what other trials share is recorded beside a result
    (TrialResult, "environment"): None,
}
"""Fields that documents do not have, and what they are when a document is read."""

# Legal values by the field's name; `[]` stands behind it for the values of a mapping.
_LONG_TEXTS = ("log", "message", "reason", "detail", "missing_baselines[]")
_POSITIVE = ("multiprocessors", "memory_bytes", "warp_size", "rounds")
_OF_ANY_SIGN = ("seed", "temperature_c")
_FINITE: dict[str, Any] = {"seconds": {"ge": 0}, "seconds[]": {}, "confidence": {"gt": 0, "lt": 1}}

_Value = TypeVar("_Value")


class Part(NamedTuple):
    """A field as documents have it.

    Attributes:
        name: in the document.
        hint: the type of the value, without None.
        optional: the value may be None.
    """

    name: str
    hint: Any
    optional: bool
    field: Field[Any]


def parts_of(kind: type) -> Iterator[Part]:
    """Yield the fields of a dataclass as its documents have them."""
    for part in _own_parts(kind):
        if part.hint not in _INLINE:
            yield part
            continue
        for inner in parts_of(part.hint):
            yield inner._replace(optional=inner.optional or part.optional)


def _own_parts(kind: type) -> Iterator[Part]:
    hints = get_type_hints(kind)
    for one in fields(kind):
        if (kind, one.name) not in _NOT_RECORDED:
            name = _RENAMED.get((kind, one.name), one.name)
            yield Part(name, *_without_none(hints[one.name]), one)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (types.UnionType, Union):
        return hint, False
    others = tuple(one for one in get_args(hint) if one is not types.NoneType)
    return (others[0] if len(others) == 1 else Union[others]), len(others) < len(get_args(hint))  # noqa: UP007


def value_of(kind: type[_Value], document: Any) -> _Value:
    """Return the value that a document describes: nested mappings by name, or values of the fields' types.

    Raises:
        EntryError: something is missing, unknown, of the wrong type or size, or breaks an invariant of a dataclass.
    """
    try:
        value: _Value = _validator(cast(Hashable, kind)).validate_python(document)
    except ValidationError as error:
        raise EntryError(_first(error)) from None
    return value


def document_of(value: object, *left_out: str) -> dict[str, Any]:
    """Return the document of a value: mappings, lists, texts, numbers, truths and None.

    Args:
        left_out: names that it is to lack.
    """
    serializer = _serializer(cast(Hashable, type(value)))
    document = serializer.to_python(value, mode="json", exclude=set(left_out), by_alias=True)
    return {name: one for name, one in document.items() if name not in left_out}


def json_of(value: object) -> bytes:
    """Return the document of a value as one line of JSON."""
    text: bytes = _serializer(cast(Hashable, type(value))).to_json(value, by_alias=True)
    return text


@cache
def _validator(kind: Any) -> SchemaValidator:
    return SchemaValidator(_of_dataclass(kind))


@cache
def _serializer(kind: Any) -> SchemaSerializer:
    return SchemaSerializer(_of_dataclass(kind))


def _of_dataclass(kind: type) -> CoreSchema:
    checked, inlined = [], []
    for part in _own_parts(kind):
        schema, alias = _schema(part.hint, part.field.name), part.name
        if part.hint in _INLINE:
            # No document has such a name itself, since it is refused wherever it is not known.
            alias = f"<{part.name}>"
            inlined.append((alias, frozenset(inner.name for inner in parts_of(part.hint)), part.optional))
        if part.optional:
            schema = core_schema.nullable_schema(schema)
        schema = _with_default(part.field, schema)
        checked.append(
            core_schema.dataclass_field(part.field.name, schema, validation_alias=alias, serialization_alias=alias)
        )
    for (owner, name), value in _NOT_RECORDED.items():
        if owner is kind:
            fixed = core_schema.with_default_schema(core_schema.is_instance_schema(type(value)), default=value)
            alias = f"<{name}>"
            checked.append(core_schema.dataclass_field(name, fixed, validation_alias=alias, serialization_exclude=True))
    arguments = core_schema.dataclass_args_schema(kind.__name__, checked, extra_behavior="forbid")
    names = [one.name for one in fields(kind)]
    whole: CoreSchema = core_schema.dataclass_schema(
        kind, arguments, names, post_init=hasattr(kind, "__post_init__"), revalidate_instances="never"
    )
    if not inlined:
        return whole

    def gather(document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        rest = dict(document)
        for alias, own, optional in inlined:
            inner = {name: rest.pop(name) for name in own & rest.keys()}
            rest[alias] = None if optional and all(one is None for one in inner.values()) else inner
        return rest

    def spread(value: Any, serialize: Any) -> Any:
        document = serialize(value)
        for alias, own, _ in inlined:
            if alias in document:
                inner = document.pop(alias)
                document |= dict.fromkeys(own) if inner is None else inner
        return document

    spreading = core_schema.wrap_serializer_function_ser_schema(spread)
    return core_schema.no_info_before_validator_function(gather, whole, serialization=spreading)


def _with_default(field: Field[Any], schema: CoreSchema) -> CoreSchema:
    if field.default is not MISSING:
        return core_schema.with_default_schema(schema, default=field.default)
    if field.default_factory is not MISSING:
        return core_schema.with_default_schema(schema, default_factory=field.default_factory)
    return schema


def _schema(hint: Any, name: str) -> CoreSchema:
    """Return the schema of a type that is not None, in a field of that name."""
    if hint is Configuration:
        values = core_schema.dict_schema(_text(), _tunable_value(), max_length=_MOST_PARTS)
        plain = core_schema.plain_serializer_function_ser_schema(dict)
        return core_schema.no_info_before_validator_function(
            _plain_mapping, core_schema.no_info_after_validator_function(Configuration, values), serialization=plain
        )
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return _of_dataclass(hint)
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        fewest = 1 if name == "samples_ms" else 0
        most = None if name == "samples_ms" else _MOST_PARTS
        return core_schema.tuple_variable_schema(_schema(arguments[0], name), min_length=fewest, max_length=most)
    if arguments:  # a mapping
        as_dict = core_schema.wrap_serializer_function_ser_schema(lambda value, serialize: serialize(dict(value)))
        key, value = _schema(arguments[0], ""), _schema(arguments[1], f"{name}[]")
        return core_schema.dict_schema(key, value, max_length=_MOST_PARTS, serialization=as_dict)
    return _scalar(hint, name)


def _scalar(hint: type, name: str) -> CoreSchema:
    if issubclass(hint, enum.Enum):
        return core_schema.enum_schema(hint, list(hint), sub_type="str")
    if hint is str:
        return _text(_LONGEST_TEXT if name in _LONG_TEXTS else _LONGEST_NAME)
    if hint is int:
        least = -_LARGEST if name in _OF_ANY_SIGN else int(name in _POSITIVE)
        return core_schema.int_schema(ge=least, le=_LARGEST_NUMBER if name == "number" else _LARGEST, strict=True)
    if hint is float:
        return _number(name)
    return {
        bool: core_schema.bool_schema(strict=True),
        datetime: core_schema.no_info_after_validator_function(_in_utc, core_schema.datetime_schema()),
    }[hint]


def _number(name: str) -> CoreSchema:
    """Times and seconds are finite; other figures may be infinite, and are NaN where there is none."""
    if name in _FINITE or name.endswith("_ms"):
        return core_schema.float_schema(**_FINITE.get(name, {"gt": 0}), allow_inf_nan=False, strict=True)
    out = core_schema.plain_serializer_function_ser_schema(_figure_out, when_used="json")
    figure = core_schema.float_schema(strict=True)
    return core_schema.no_info_before_validator_function(_figure_in, figure, serialization=out)


def _text(longest: int = _LONGEST_NAME) -> CoreSchema:
    return core_schema.str_schema(max_length=longest, pattern=r"\A[^\x00]*\z", strict=True)


def _tunable_value() -> CoreSchema:
    whole = core_schema.int_schema(ge=-_LARGEST, le=_LARGEST, strict=True)
    fraction = core_schema.no_info_before_validator_function(
        _fraction, core_schema.float_schema(allow_inf_nan=False, strict=True)
    )
    return core_schema.union_schema([core_schema.bool_schema(strict=True), whole, fraction, _text()])


def _plain_mapping(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def _fraction(value: object) -> object:
    """A whole number too large for 64 bits does not become a fraction."""
    if isinstance(value, float):
        return value
    raise ValueError("a fraction is expected")


def _figure_in(value: object) -> object:
    """JSON has neither infinity, which is a text there, nor NaN, which is null."""
    if value is None:
        return math.nan
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("NaN: leave the value out, or null")
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(value, value) if isinstance(value, str) else value


def _figure_out(value: float) -> float | str | None:
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _in_utc(value: datetime) -> datetime:
    """UTC, so that equal moments are equal text."""
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value} is outside the calendar in UTC") from None


def _first(error: ValidationError) -> str:
    """The first error: its place, and what it is."""
    detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(f"{part!s:.40}" for part in detail["loc"] if not str(part).startswith("<"))[:200]
    what = " ".join(detail["msg"].removeprefix("Value error, ").split())[:200]
    return f"{where}: {what}" if where else what
