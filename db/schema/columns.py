"""Column types that mean the same on SQLite and PostgreSQL, and that believe nothing they read.

On SQLite every table is `STRICT`, which knows INTEGER, REAL and TEXT only; on PostgreSQL the natural types are used. A
value of the wrong kind (a database is data that anyone may have written) raises `DatabaseError` when it is read.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import JSON, REAL, BigInteger, Boolean, DateTime, Double, Integer, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from tunebench.tuner.errors import DatabaseError

JsonValue: TypeAlias = Any

_LARGEST = 2**63 - 1


def _mismatch(kind: str, value: object) -> DatabaseError:
    return DatabaseError(f"the database holds {value!r:.80} where {kind} belongs: it was not written by tunebench")


def _storable_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _storable(value: JsonValue) -> JsonValue:
    """The same with every text in it as a database can hold it."""
    if isinstance(value, str):
        return _storable_text(value)
    if isinstance(value, dict):
        return {_storable_text(name): _storable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(one) for one in value]
    return value


class _Of(TypeDecorator[Any]):
    """Values of one kind; one of another kind is refused when it is read.

    Attributes:
        kind: in words.
        types: Python's.
    """

    kind: ClassVar[str]
    types: ClassVar[tuple[type, ...]]

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        """The value."""
        if value is None or isinstance(value, self.types):
            return value
        raise _mismatch(self.kind, value)


class Words(_Of):
    """Text, kept as it is but for what a database cannot hold: NUL and lone surrogates are written as escapes."""

    impl = Text
    cache_ok = True
    kind, types = "text", (str,)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Escape what is not storable; a compiler's log may hold anything."""
        return None if value is None else _storable_text(str(value))


class Whole(_Of):
    """A whole number of 64 bits."""

    impl = BigInteger().with_variant(Integer(), "sqlite")
    cache_ok = True
    kind, types = "a whole number", (int,)

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """Refuse what does not fit 64 bits."""
        if value is not None and not -_LARGEST <= value <= _LARGEST:
            raise DatabaseError(f"{value} does not fit a 64-bit column")
        return None if value is None else int(value)


class Number(_Of):
    """A 64-bit floating-point number. NaN is stored as NULL, since SQLite has no other way to say it."""

    impl: Any = Double().with_variant(REAL(), "sqlite")
    cache_ok = True
    kind, types = "a number", (int, float)

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:  # noqa: ARG002
        """Turn NaN into NULL on every database alike."""
        return None if value is None or math.isnan(value) else float(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:
        """The number."""
        found = super().process_result_value(value, dialect)
        return None if found is None else float(found)


class Truth(_Of):
    """True or false; 1 or 0 on SQLite, whose tables check the range."""

    impl = Boolean().with_variant(Integer(), "sqlite")
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:  # noqa: ARG002
        """Refuse what is neither."""
        if value not in (None, 0, 1):
            raise _mismatch("true or false", value)
        return None if value is None else bool(value)


class Moment(_Of):
    """A moment in UTC; on SQLite ISO 8601 text with offset, which sorts by time and which its date functions read."""

    impl = DateTime(timezone=True).with_variant(Text(), "sqlite")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Convert to UTC; a moment without a zone is a mistake.

        Raises:
            ValueError: the moment has no time zone.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        moment = value.astimezone(UTC)
        return moment.isoformat(timespec="microseconds") if dialect.name == "sqlite" else moment

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """The moment in UTC."""
        if value is None:
            return None
        try:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise _mismatch("a time", value) from None
        if moment.tzinfo is None:
            raise _mismatch("a time with its zone", value)
        return moment.astimezone(UTC)


class Json(_Of):
    """A JSON value: TEXT on SQLite, JSON (which keeps the text, so that numbers come back bit for bit) elsewhere."""

    impl = JSON(none_as_null=True).with_variant(Text(), "sqlite")
    cache_ok = True

    def process_bind_param(self, value: JsonValue, dialect: Dialect) -> JsonValue:
        """Serialise strictly.

        Raises:
            ValueError: a number is not finite, which JSON cannot say.
        """
        if value is None:
            return None
        text = json.dumps(_storable(value), separators=(",", ":"), allow_nan=False)
        return text if dialect.name == "sqlite" else json.loads(text)

    def process_result_value(self, value: Any, dialect: Dialect) -> JsonValue:
        """The parsed value."""
        if value is None or dialect.name != "sqlite":
            return value
        try:
            return json.loads(value)
        except (TypeError, ValueError, RecursionError):
            raise _mismatch("JSON", value) from None


KEY = BigInteger().with_variant(Integer(), "sqlite")
"""The type of primary and foreign keys: on SQLite exactly INTEGER, which makes the key the row's own number."""
