"""Readers of options' text on a command line; each function takes the option's name and its text or texts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tunebench.tuner.empty import require_said
from tunebench.tuner.errors import UserError

LARGEST = 2**63 - 1
"""The largest whole number that a database holds."""
MOST = 10**12
"""A number that is more than anybody has rows, and short in a help text."""

LONGEST = 1e9
"""The longest limit of time, seconds: thirty years."""


def _pairs(options: Sequence[str], form: str) -> dict[str, str]:
    pairs = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not (separator and name.isprintable() and name and value):
            raise UserError(f"'{option}' is not of the form {form}")
        pairs[name] = value
    return pairs


def read_values(_option: str, texts: Sequence[str]) -> dict[str, bool | int | float | str]:
    """Return NAME=VALUE texts as a mapping."""
    return {name: _value(text) for name, text in _pairs(texts, "NAME=VALUE").items()}


def read_sizes(_option: str, texts: Sequence[str]) -> dict[str, int | float]:
    """Return NAME=NUMBER texts as a mapping."""
    return {name: _number(name, text) for name, text in _pairs(texts, "NAME=NUMBER").items()}


def read_tunables(_option: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return NAME=V1,V2,... texts as a mapping to lists of values."""
    pairs = _pairs(texts, "NAME=VALUE or NAME=V1,V2,...")
    return {name: [_value(part) for part in read_list(name, text)] for name, text in pairs.items()}


def read_settings(_option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE texts as settings of PyTorch's."""
    return _pairs(texts, "matmul=tf32")


def read_configurations(option: str, texts: Sequence[str]) -> list[dict[str, bool | int | float | str]]:
    """Return NAME=VALUE,... texts as one mapping each."""
    return [read_values(option, read_list(option, text)) for text in texts]


def read_path(_option: str, text: str) -> Path:
    """Return the place that a text names."""
    return Path(text)


def read_percent(option: str, text: str) -> float:
    """Return a number of percent as a share.

    Raises:
        UserError: it is none.
    """
    try:
        return float(text) / 100
    except ValueError:
        raise UserError(f"{option} '{text:.40}' is no number: write 2 for two percent") from None


def read_list(option: str, text: str) -> list[str]:
    """Return the values of an option that takes several, separated by commas.

    Raises:
        UserError: one of them is empty.
    """
    values = text.split(",")
    require_said(f"a value of {option} '{text:.100}'", values)
    return values


def read_moment(option: str, text: str) -> datetime:
    """Return a date or a time in ISO 8601; UTC where it names no zone.

    Raises:
        UserError: it is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UserError(
            f"{option} '{text}' is not a time: write 2026-01-31 or 2026-01-31T12:00+01:00 (UTC where no zone is named)"
        ) from None


def _number(name: str, text: str) -> int | float:
    value = _value(text)
    if isinstance(value, bool | str) or not abs(value) <= LARGEST:
        raise UserError(f"size '{name}' is '{text:.40}': give a positive number below 2^63")
    return value


def _value(text: str) -> bool | int | float | str:
    """Return what a value on the command line means: true, false, a number, else text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
