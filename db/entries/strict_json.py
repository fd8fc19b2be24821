"""JSON from anyone, read without surprises."""

from __future__ import annotations

import json
from typing import Any


class EntryError(ValueError):
    """A record that is not one; the message is one line that names the field."""


MOST_VALUES = 1_000_000
"""Values in one text that is one entry or less."""


def parse_json(text: str | bytes, most_values: int = MOST_VALUES) -> Any:
    """Strict JSON: no NaN, no name twice in an object, not nested beyond reason.

    Args:
        most_values: more are refused before they are read: three bytes of text become a hundred of memory.

    Raises:
        EntryError: it is not; the message is one line.
    """
    if _marks(text) > most_values:
        raise EntryError(f"more than {most_values:,} values in one piece of JSON")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        raise EntryError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise EntryError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except UnicodeDecodeError:
        raise EntryError("not UTF-8 text") from None
    except EntryError:
        raise
    except ValueError:
        # Python refuses to read whole numbers of thousands of digits.
        raise EntryError("a number has too many digits") from None


def _marks(text: str | bytes) -> int:
    """How many brackets and commas there are: no fewer than values but one, wherever they stand."""
    if isinstance(text, str):
        return sum(text.count(mark) for mark in "[{,")
    return sum(text.count(mark) for mark in (b"[", b"{", b","))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise EntryError(f"{twice!r:.60} stands twice in one object")
    return values


def _no_constant(name: str) -> float:
    raise EntryError(f"{name} is not a number of JSON")
