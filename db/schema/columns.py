"""Column types that mean the same on SQLite and PostgreSQL, and that believe nothing they read.

On SQLite every table is `STRICT`, which knows INTEGER, REAL and TEXT only; on PostgreSQL the natural types are used. A
value of the wrong kind (a database is data that anyone may have written) raises `DatabaseError` when it is read.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any, TypeAlias

from sqlalchemy import DOUBLE_PRECISION, JSON, REAL, BigInteger, Boolean, DateTime, Double, Integer, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

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


class Words(TypeDecorator[str]):
    """Text, kept as it is but for what a database cannot hold: NUL and lone surrogates are written as escapes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Escape what is not storable; a compiler's log may hold anything."""
        return None if value is None else _storable_text(str(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Refuse what is not text."""
        if value is None or isinstance(value, str):
            return value
        raise _mismatch("text", value)


class Whole(TypeDecorator[int]):
    """A whole number of 64 bits."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """INTEGER on SQLite, BIGINT elsewhere."""
        return dialect.type_descriptor(Integer() if dialect.name == "sqlite" else BigInteger())

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """Refuse what does not fit 64 bits."""
        if value is not None and not -_LARGEST <= value <= _LARGEST:
            raise DatabaseError(f"{value} does not fit a 64-bit column")
        return None if value is None else int(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:  # noqa: ARG002
        """Refuse what is not a whole number."""
        if value is None or isinstance(value, int):
            return value
        raise _mismatch("a whole number", value)


class Number(TypeDecorator[float]):
    """A 64-bit floating-point number. NaN is stored as NULL, since SQLite has no other way to say it."""

    impl = Double
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """REAL on SQLite, DOUBLE PRECISION elsewhere."""
        return dialect.type_descriptor(REAL() if dialect.name == "sqlite" else DOUBLE_PRECISION())

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:  # noqa: ARG002
        """Turn NaN into NULL on every database alike."""
        return None if value is None or math.isnan(value) else float(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:  # noqa: ARG002
        """Refuse what is not a number."""
        if value is None:
            return None
        if isinstance(value, int | float):
            return float(value)
        raise _mismatch("a number", value)


class Truth(TypeDecorator[bool]):
    """True or false; 1 or 0 on SQLite, whose tables check the range."""

    impl = Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """INTEGER on SQLite, BOOLEAN elsewhere."""
        return dialect.type_descriptor(Integer() if dialect.name == "sqlite" else Boolean())

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:  # noqa: ARG002
        """Refuse what is neither."""
        if value is None:
            return None
        if value in (0, 1):
            return bool(value)
        raise _mismatch("true or false", value)


class Moment(TypeDecorator[datetime]):
    """A moment in UTC; on SQLite ISO 8601 text with offset, which sorts by time and which its date functions read."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """TEXT on SQLite, TIMESTAMP WITH TIME ZONE elsewhere."""
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else DateTime(timezone=True))

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


class Json(TypeDecorator[JsonValue]):
    """A JSON value: TEXT on SQLite, JSON (which keeps the text, so that numbers come back bit for bit) elsewhere."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """TEXT on SQLite, JSON elsewhere."""
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else JSON(none_as_null=True))

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
