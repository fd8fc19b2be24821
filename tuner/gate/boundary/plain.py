"""How values of declared types become the plain ones that cross the boundary, and come back checked by their types."""

from __future__ import annotations

import contextlib
import enum
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from tunebench.tuner.errors import TunebenchError


class MalformedError(TunebenchError):
    """A plain value is not of the type that is declared for it."""


@functools.cache
def declared_types(method: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types that a function or a dataclass declares, by the name of the argument or field, and `return`."""
    return get_type_hints(method)


def taken_apart(value: Any) -> Any:
    """Return a value in which dataclasses are mappings of their fields, and members of enums are their values."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: taken_apart(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = map(taken_apart, value)
        return tuple(items) if isinstance(value, tuple) else list(items)
    if is_dataclass(value):
        return {one.name: taken_apart(getattr(value, one.name)) for one in fields(value)}
    return value


def put_together(kind: Any, given: Any) -> Any:
    """Return the value of a declared type that was taken apart.

    Raises:
        MalformedError: it is not of that type.
    """
    if kind is Any:
        return given
    try:
        return _READERS.get(get_origin(kind), _value)(kind, get_args(kind), given)
    except (TypeError, ValueError, AttributeError) as error:
        raise MalformedError(f"a value of type {type(given).__name__} in place of {kind}") from error


def _value(kind: Any, _: Sequence[Any], given: Any) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        kinds = declared_types(kind)
        return kind(**{name: put_together(kinds.get(name), item) for name, item in given.items()})
    if issubclass(kind, enum.Enum):
        return kind(given)
    if type(given) is not kind if kind in _PLAIN else not isinstance(given, kind):
        raise TypeError
    return given


def _tuple(_: Any, parts: Sequence[Any], given: Any) -> Any:
    kinds = [parts[0]] * len(given) if parts[-1] is ... else parts
    return tuple(put_together(kind, item) for kind, item in zip(kinds, _is(given, tuple), strict=True))


def _sequence(_: Any, parts: Sequence[Any], given: Any) -> Any:
    return type(given)(put_together(parts[0], item) for item in _is(given, tuple | list))


def _mapping(_: Any, parts: Sequence[Any], given: Any) -> Any:
    return {put_together(parts[0], key): put_together(parts[1], item) for key, item in _is(given, dict).items()}


def _one_of(_: Any, kinds: Sequence[Any], given: Any) -> Any:
    for kind in kinds:
        with contextlib.suppress(MalformedError):
            return put_together(kind, given)
    raise TypeError


def _is(given: Any, kind: type | types.UnionType) -> Any:
    if not isinstance(given, kind):
        raise TypeError
    return given


_PLAIN = (bool, int, float, str)
_READERS: Mapping[Any, Callable[[Any, Sequence[Any], Any], Any]] = {
    tuple: _tuple,
    Sequence: _sequence,
    Mapping: _mapping,
    Union: _one_of,
    types.UnionType: _one_of,
}
