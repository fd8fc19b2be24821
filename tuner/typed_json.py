"""JSON as dataclasses, whose types are checked all the way down.

By hand: the library that would do it takes longer to import than a look-up may take.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Content = TypeVar("Content")


def parse(kind: type[Content], text: bytes) -> Content:
    """Return the dataclass that a text describes.

    Raises:
        ValueError: it says none; the message says where.
    """
    try:
        found: Content = _checked(kind, json.loads(text), "")
    except RecursionError as error:
        raise ValueError(str(error)) from error
    return found


def _checked(kind: Any, value: Any, where: str) -> Any:
    """Return a value from JSON as that type, which is checked all the way down.

    Raises:
        ValueError: it is of another type; the message says where.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    expected: tuple[type, ...] = (origin or kind,)
    if is_dataclass(kind):
        expected = (dict,)
    elif origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        others = [one for one in arguments if one is not NoneType]
        if len(others) == 1:
            return _checked(others[0], value, where)
        expected = tuple(others)
    if type(value) not in expected and not (float in expected and type(value) is int):
        names = " or ".join(one.__name__ for one in expected)
        raise ValueError(f"{where.lstrip('.') or 'the file'}: {type(value).__name__} instead of {names}")
    if type(value) is int and abs(value) >= 2**63:
        raise ValueError(f"{where.lstrip('.')}: more than 64 bits")
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        optional = {one.name for one in fields(kind) if one.default_factory is not MISSING}
        if wrong := (value.keys() ^ hints.keys()) - (optional - value.keys()):
            name = min(wrong)
            what = "is missing" if name in hints else "is not a field"
            raise ValueError(f"{where}.{name}".lstrip(".") + f": {what}")
        make: Any = kind
        return make(**{name: _checked(hints[name], one, f"{where}.{name}") for name, one in value.items()})
    if origin is list:
        return [_checked(arguments[0], one, f"{where}.{number}") for number, one in enumerate(value)]
    if origin is dict:
        return {name: _checked(arguments[1], one, f"{where}.{name}") for name, one in value.items()}
    return value
