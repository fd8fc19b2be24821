"""Recorded, exhaustively measured spaces: T4 results and Kernel Tuner's cache files, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tunebench.tuner.errors import UserError
from tunebench.tuner.space import INACTIVE, SearchSpace, Tunable, ValidSpace, Value

Floats = npt.NDArray[np.float64]

_FAILED_MS = 1e19
"""Kernel Tuner once marked failures with a time of 1e20."""

MILLISECONDS = {"": 1.0, "ms": 1.0, "milliseconds": 1.0, "miliseconds": 1.0, "s": 1e3, "seconds": 1e3}
MILLISECONDS |= {"us": 1e-3, "µs": 1e-3, "microseconds": 1e-3, "ns": 1e-6, "nanoseconds": 1e-6}
"""Milliseconds in a unit of time, by the names that it has in files."""


class RecordedSpaceError(UserError):
    """A file that is not a recorded space, or holds no successful configuration."""


@dataclass(frozen=True, eq=False)
class RecordedSpace:
    """A space with the time of every configuration.

    Attributes:
        name: of the file, without its suffixes.
        space: the configurations in the file's order; values of numeric tunables in increasing order.
        times_ms: float64, one per configuration, milliseconds; NaN where it failed.
        kernel: its name; empty where the file does not say.
    """

    name: str
    space: ValidSpace
    times_ms: Floats
    kernel: str = ""

    @cached_property
    def optimum_ms(self) -> float:
        """The best time of all."""
        return float(np.nanmin(self.times_ms))

    @cached_property
    def worst_ms(self) -> float:
        """The worst time of all: what a search is charged with before its first success."""
        return float(np.nanmax(self.times_ms))


Record = tuple[Mapping[str, Value], float]
"""A configuration and its time in milliseconds, NaN where it failed."""


def load_recorded(path: Path) -> RecordedSpace:
    """Read a recorded space: T4 results or a Kernel Tuner cache file, `.json` or `.json.gz`.

    A cache file that was cut off while it was appended to is read up to its last whole configuration. Of several
    records of one configuration the last counts.

    Raises:
        RecordedSpaceError: the file is unreadable, of another format, or without a success.
    """
    content = _parse(path)
    if isinstance(content.get("results"), list):
        records = list(_t4_records(content))
    elif isinstance(content.get("cache"), dict):
        records = list(_cache_records(content))
    else:
        raise RecordedSpaceError(f"{path} is neither T4 results nor a Kernel Tuner cache file: no 'results' or 'cache'")
    if not any(math.isfinite(record_ms) for _, record_ms in records):
        raise RecordedSpaceError(f"{path} has no configuration with a time")
    return recorded_space(path.name.split(".json")[0], records)


def recorded_space(name: str, records: Sequence[Record], kernel: str = "") -> RecordedSpace:
    """The space of some configurations and their times in milliseconds, NaN where one failed; one of them did not.

    Of several records of one configuration the last counts.
    """
    return RecordedSpace(name, *_assemble(records), kernel)


def _parse(path: Path) -> dict[str, Any]:
    try:
        data = _decompressed(path.read_bytes())
        data.decode()
    except (OSError, zlib.error, UnicodeDecodeError) as error:
        raise RecordedSpaceError(f"cannot read {path}: {error}") from error
    for candidate in completions(data):
        try:
            content = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(content, dict):
            return content
    raise RecordedSpaceError(f"{path} is not a JSON object")


def completions(data: bytes) -> tuple[bytes, ...]:
    """What a JSON file may have been meant to be: a cache file that is appended to lacks its last braces.

    It may also end inside a configuration, which is then left out.
    """
    begun = data.rstrip().removesuffix(b",")
    whole = begun[: begun.rfind(b"}") + 1]
    return (begun, begun + b"}", begun + b"}}", whole + b"}}", whole + b"}")


def _decompressed(data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        return zlib.decompressobj(wbits=31).decompress(data)


def _t4_records(content: Mapping[str, Any]) -> Iterable[Record]:
    fallback = str(content.get("metadata", {}).get("timeunit", ""))
    for result in content["results"]:
        value: Any = math.nan
        unit = ""
        if result.get("invalidity", "correct") == "correct":
            value, unit = _t4_time(result)
        scale = MILLISECONDS.get((unit or fallback).lower(), 1.0)
        yield _scalars(result["configuration"]), _milliseconds(value) * scale


def _t4_time(result: Mapping[str, Any]) -> tuple[Any, str]:
    """The measurement called `time`, or else the first objective, or else the raw run times; with its unit."""
    measurements = {entry["name"]: entry for entry in result.get("measurements", [])}
    for name in ("time", *result.get("objectives", [])[:1]):
        if name in measurements:
            return measurements[name].get("value"), str(measurements[name].get("unit", ""))
    return result.get("times", {}).get("runtimes"), ""


def _cache_records(content: Mapping[str, Any]) -> Iterable[Record]:
    names = content.get("tune_params_keys") or list(content.get("tune_params", {}))
    for entry in content["cache"].values():
        yield _scalars({name: entry[name] for name in names if name in entry}), _milliseconds(entry.get("time"))


def _milliseconds(value: Any) -> float:
    """A number, or the mean of several; NaN for anything else, such as the name of a failure."""
    if isinstance(value, list):
        return float(np.mean(value)) if value else math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if 0 < value < _FAILED_MS else math.nan


def _scalars(configuration: Mapping[str, Any]) -> dict[str, Value]:
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in configuration.items()
    }


def _assemble(records: Sequence[Record]) -> tuple[ValidSpace, Floats]:
    tunables = _tunables([configuration for configuration, _ in records])
    positions = [{value: index for index, value in enumerate(t.values)} for t in tunables.values()]
    kinds = [type(t.values[0]) for t in tunables.values()]
    times_of: dict[tuple[int, ...], float] = {}
    for configuration, time_ms in records:
        row = tuple(
            position[kind(configuration[name])] if name in configuration else INACTIVE
            for name, position, kind in zip(tunables, positions, kinds, strict=True)
        )
        times_of[row] = time_ms
    space = SearchSpace(tuple(tunables.values()), default={t.name: t.values[0] for t in tunables.values()})
    return ValidSpace(space, np.array(list(times_of), dtype=np.int16)), np.array(list(times_of.values()))


def _tunables(configurations: Sequence[Mapping[str, Value]]) -> dict[str, Tunable]:
    """The tunables by their names in the file, with the values that occur: numbers in order, others as they come."""
    values: dict[str, dict[Value, None]] = {}
    for configuration in configurations:
        for name, value in configuration.items():
            values.setdefault(name, {})[value] = None
    return {name: Tunable(_identifier(name), _one_type(list(seen))) for name, seen in values.items()}


def _identifier(name: str) -> str:
    """The name itself, or what comes nearest to it among the names that a tunable may have."""
    cleaned = "".join(c if c.isalnum() else "_" for c in name)
    return cleaned if cleaned.isidentifier() and cleaned not in ("problem", "device") else f"_{cleaned}"


def _one_type(values: list[Value]) -> tuple[Value, ...]:
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        kind = float if float in kinds else int
        return tuple(sorted({kind(value) for value in values}))
    return tuple(values) if len(kinds) == 1 else tuple(dict.fromkeys(str(value) for value in values))
