"""Results of other tuners as entries: what they do not say is `unknown`, and what they are can never be mistaken.

Their studies have a source digest that no kernel has (digests of sources are hexadecimal), so that choosing a
configuration at run time never meets them. Their origin is drawn from what the study is, not from the file, so that a
file that has grown, or that was imported on two machines, adds only what is new.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard

from tunebench.db.entries.codec import value_of
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.exchange.formats.base import FormatName, ImportOptions
from tunebench.tuner.build import CompilerName
from tunebench.tuner.device import DeviceKind
from tunebench.tuner.result import CacheRegime, TrialStatus
from tunebench.tuner.timing.statistics import median_interval

UNKNOWN = "unknown"
SAMPLER = "imported"

SOURCE_MARK = "imported from "
"""Prefix of the source digest of another tuner's study."""

_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""When a result was recorded, where a file does not say: the same at every import."""

FAILURE_MARK_MS = 1e19
"""Kernel Tuner once marked failures with a time of 1e20."""


@dataclass(frozen=True)
class ForeignStudy:
    """A study of another tuner, as described by its file and the user.

    Attributes:
        options: what fixes the problem beside sizes.
        tunables: the names of the tunables with what is known of their values.
    """

    format: FormatName
    kernel: str
    device: str
    axes: Mapping[str, object]
    options: Mapping[str, str]
    tunables: Mapping[str, object]

    def values(self, options: ImportOptions) -> dict[str, Any]:
        """The study as an entry's mapping."""
        space = json.dumps(self.tunables, sort_keys=True, default=str)
        study: dict[str, Any] = {
            "kernel": options.kernel or self.kernel,
            "source_digest": f"{SOURCE_MARK}{self.format}",
            "space_digest": hashlib.sha256(space.encode()).hexdigest(),
            "problem": {
                "dtype": options.dtype or UNKNOWN,
                "axes": dict(options.axes or self.axes),
                "options": dict(self.options),
            },
            "device": _device(options.device or self.device, options.architecture or UNKNOWN),
            "compiler": CompilerName.NVRTC.value,
            "sampler": SAMPLER,
            "seed": 0,
            "begun_at": _NO_TIME,
        }
        identity = json.dumps(study, sort_keys=True, default=str).encode()
        study["origin"] = {"uid": hashlib.sha256(identity).hexdigest()[:32], "created_at": _NO_TIME}
        return study


@dataclass(frozen=True)
class ForeignTrial:
    """The result of one configuration in a file of another tuner.

    Attributes:
        samples_ms: empty where it failed.
        seconds: by phase.
    """

    configuration: Mapping[str, object]
    status: TrialStatus
    message: str
    samples_ms: Sequence[float]
    recorded_at: datetime
    seconds: Mapping[str, float]

    def entry(self, study: Mapping[str, Any], clock: str) -> Entry:
        """The trial as an entry, its number left to the database.

        Raises:
            EntryError: a value is not one that a database may hold.
        """
        refused = self.status is TrialStatus.CORRECTNESS
        message = self.message or ("" if self.status is TrialStatus.CORRECT else f"{clock} says only: {self.status}")
        trial = {
            "number": None,
            "configuration": self.configuration,
            "environment": _ENVIRONMENT,
            "status": self.status.value,
            "build": None,
            "build_cached": None,
            "verdict": {"passed": not refused, "reason": message if refused else "", "tolerance": None, "stages": []}
            if self.status.timed or refused
            else None,
            "measurement": _measurement(self.samples_ms, clock) if self.status.timed else None,
            "recorded_at": self.recorded_at,
            "seconds": self.seconds,
            "message": message,
        }
        return value_of(Entry, {"study": study, "trial": trial})


def _device(name: str, architecture: str) -> dict[str, Any]:
    """A device whose limits are not known: they are 1 or 0, the least that a device may have."""
    limits = dict.fromkeys(("multiprocessors", "memory_bytes", "warp_size"), 1)
    bounds = ("l2_bytes", "max_threads_per_block", "max_shared_bytes", "max_threads_per_multiprocessor")
    limits |= dict.fromkeys(bounds, 0)
    return {"kind": DeviceKind.CUDA.value, "name": name, "architecture": architecture, "uuid": UNKNOWN} | limits


_ENVIRONMENT = {
    **dict.fromkeys(("tunebench", "python", "torch", "compiler", "platform", "host"), UNKNOWN),
    "cuda": None,
    "driver": None,
}


def _measurement(samples_ms: Sequence[float], clock: str) -> dict[str, Any]:
    """Kernel Tuner runs a kernel again and again without emptying the caches."""
    median_ms, low_ms, high_ms = median_interval(samples_ms)
    interval = {"median_ms": median_ms, "low_ms": low_ms, "high_ms": high_ms}
    return interval | {"regime": CacheRegime.WARM.value, "clock": clock, "samples_ms": samples_ms}


def samples_of(value: object, scale: float = 1.0) -> list[float]:
    """Times in milliseconds from a number or a list of numbers; empty for anything else, such as a failure's name.

    Raises:
        EntryError: a time is not a positive number.
    """
    listed = value if isinstance(value, list) else [value] if is_number(value) else []
    for one in listed:
        if not is_number(one) or not 0 < float(one) < math.inf:
            raise EntryError(f"{one!r:.60} is not a time: it must be a positive number")
    return [float(one) * scale for one in listed]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that fits 64-bit floating point; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -1e308 < value < 1e308


def seconds_of(values: Mapping[str, Any], names: Mapping[str, str], scale: float = 1e-3) -> dict[str, float]:
    """Return the seconds that phases took, by their names here.

    Args:
        names: a phase's name here by its name there.
        scale: seconds in one unit of the values.
    """
    found = ((ours, values.get(theirs)) for theirs, ours in names.items())
    return {ours: float(value) * scale for ours, value in found if is_number(value)}


def moment_of(value: object) -> datetime:
    """A time stamp; UTC where it has no zone, the epoch where there is none.

    Raises:
        EntryError: it is not a time.
    """
    if value is None or value == "":
        return _NO_TIME
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None:
        raise EntryError(f"timestamp {value!r:.60} is not an ISO 8601 time")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def scalars(values: Mapping[str, object]) -> dict[str, object]:
    """A configuration whose values are numbers, truths and texts; a list is kept as its JSON text.

    Raises:
        EntryError: there is no value for a tunable.
    """
    for name, value in values.items():
        if value is None:
            raise EntryError(f"tunable {name!r:.60} has no value")
    return {n: v if isinstance(v, bool | int | float | str) else json.dumps(v) for n, v in values.items()}


def mapping(value: object, what: str) -> dict[str, Any]:
    """The value if it is an object.

    Raises:
        EntryError: it is not.
    """
    if not isinstance(value, dict):
        raise EntryError(f"{what} is not an object")
    return value


def listed(value: object, what: str) -> list[Any]:
    """The value if it is an array.

    Raises:
        EntryError: it is not.
    """
    if not isinstance(value, list):
        raise EntryError(f"{what} is not an array")
    return value
