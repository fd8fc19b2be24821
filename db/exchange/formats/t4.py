"""The FAIR results format of the auto-tuning community (T4), schema 1.0.0.

What is written has the schema's names; Kernel Tuner's own form (`times.compilation` for `compilation_time`, a top-level
`metadata.timeunit`, `correctness` always 1) is read as well.

Source: https://github.com/odgaard/TuningSchema (branch T4).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from tunebench.db.entries.codec import document_of
from tunebench.db.entries.entry import STUDY_WORDS, Entry, RecordedStudy, RecordedTrial
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.exchange.formats import foreign
from tunebench.db.exchange.formats.base import Format, FormatName, ImportOptions, parse_whole, read_whole
from tunebench.tuner.build import BuildRecord
from tunebench.tuner.result import TrialResult, TrialStatus

SCHEMA_VERSION = "1.0.0"
METADATA_SUFFIX = "-metadata.json"

_MILLISECONDS = {"": 1.0, "ms": 1.0, "milliseconds": 1.0, "miliseconds": 1.0, "s": 1e3, "seconds": 1e3}
_MILLISECONDS |= {"us": 1e-3, "µs": 1e-3, "microseconds": 1e-3, "ns": 1e-6, "nanoseconds": 1e-6}
"""Milliseconds in a unit of time, by the names that it has in files."""

_WORDS = {status: status.value for status in TrialStatus} | {TrialStatus.PRUNED: TrialStatus.CORRECT.value}
_PHASES = {"compilation_time": "compile", "compilation": "compile", "validation": "check"}
_PHASES |= {"framework": "framework", "search_algorithm": "search"}


class T4Format(Format):
    """Every trial of one study, failures included; with a metadata file beside it."""

    name = FormatName.T4
    foreign = True

    def write(self, entries: Iterable[Entry], stream: BinaryIO) -> Mapping[str, bytes]:
        """One result a trial, and a metadata file of the first one's machine."""
        first: Entry | None = None
        stream.write(f'{{"schema_version": "{SCHEMA_VERSION}",\n"results": ['.encode())
        separator = "\n"
        for entry in entries:
            first = first or entry
            if entry.trial is not None:
                stream.write((separator + json.dumps(_result(entry.trial), allow_nan=False)).encode())
                separator = ",\n"
        stream.write(b"\n]}\n")
        return {} if first is None else {METADATA_SUFFIX: _metadata(first)}

    def read(self, stream: BinaryIO, name: str, options: ImportOptions) -> Iterator[Entry]:
        """An entry a result.

        Raises:
            EntryError: not T4 results; the message says which result is wrong, counted from 0.
        """
        content = foreign.mapping(parse_whole(read_whole(stream)), "the file")
        if "results" not in content:
            raise EntryError("there are no 'results' in it, as there are in T4 results")
        results = foreign.listed(content["results"], "results")
        unit = _unit(content)
        study: dict[str, Any] | None = None
        for number, result in enumerate(results):
            try:
                trial = _trial(foreign.mapping(result, "the result"), unit)
                if study is None:
                    names = dict.fromkeys(sorted(trial.configuration), "")
                    study = foreign.ForeignStudy(self.name, name, foreign.UNKNOWN, {}, {}, names).values(options)
                yield trial.entry(study, "T4")
            except EntryError as error:
                raise EntryError(f"result {number}: {error}") from None


def _result(trial: RecordedTrial) -> dict[str, Any]:
    result = trial.standing
    times: dict[str, Any] = {
        theirs: result.seconds[ours] * 1e3
        for theirs, ours in (("compilation_time", "compile"), ("validation", "check"))
        if ours in result.seconds
    }
    times["runtimes"] = list(result.measurement.samples_ms) if result.measurement else []
    return {
        "timestamp": trial.recorded_at.isoformat(),
        "configuration": dict(result.configuration),
        "times": times,
        "invalidity": _WORDS[result.status],
        "correctness": int(result.verdict is not None and result.verdict.passed),
        "measurements": _measurements(result, trial.build),
        "objectives": ["time"],
    }


def _measurements(result: TrialResult, build: BuildRecord | None) -> list[dict[str, object]]:
    """Times with their unit, figures of the build, and in words what T4 has no field for."""
    found: list[tuple[str, object, str]] = []
    if result.measurement is not None:
        interval = ("time", result.measurement.median_ms), ("time_low", result.measurement.low_ms)
        found += [(name, value, "ms") for name, value in (*interval, ("time_high", result.measurement.high_ms))]
    found += _figures(build) if build is not None else []
    if result.status is TrialStatus.PRUNED:
        found.append(("status", result.status.value, ""))
    if result.message:
        found.append(("message", result.message, ""))
    return [{"name": name, "value": value, "unit": unit} for name, value, unit in found]


def _figures(build: BuildRecord) -> list[tuple[str, object, str]]:
    units = {"registers": "", "spill_stores": "B", "spill_loads": "B", "stack": "B", "shared": "B"}
    return [
        (f"{entry_point}.{name}", getattr(figures, name), unit)
        for entry_point, figures in build.figures.items()
        for name, unit in units.items()
        if getattr(figures, name) is not None
    ]


def _metadata(entry: Entry) -> bytes:
    study = entry.study
    environment = entry.trial.environment if entry.trial else None
    requirements = [f"tunebench=={environment.tunebench}", f"torch=={environment.torch}"] if environment else []
    content = {
        "schema_version": SCHEMA_VERSION,
        "metadata": {
            "hardware": {
                "hardware_description": [document_of(study.device)],
                "operating_system": environment.platform if environment else "",
            },
            "environment": {
                "device_query": vars(environment) if environment else {},
                "requirements": requirements,
            },
            "study": _study_values(study),
        },
    }
    return json.dumps(content, indent=2).encode() + b"\n"


def _study_values(study: RecordedStudy) -> dict[str, object]:
    return {name: getattr(study, name) for name in STUDY_WORDS} | {"problem": document_of(study.problem)}


def _unit(content: Mapping[str, Any]) -> float:
    """Milliseconds in the file's unit; the schema has no field for it, and Kernel Tuner says it in its own."""
    name = foreign.mapping(content.get("metadata", {}), "metadata").get("timeunit", "")
    return _milliseconds_in(name)


def _milliseconds_in(name: object) -> float:
    if not isinstance(name, str) or name.lower() not in _MILLISECONDS:
        raise EntryError(f"unit of time {name!r:.60} is not known (known: {', '.join(filter(None, _MILLISECONDS))})")
    return _MILLISECONDS[name.lower()]


def _trial(result: Mapping[str, Any], unit: float) -> foreign.ForeignTrial:
    times = foreign.mapping(result.get("times", {}), "times")
    measured = _named(result)
    samples_ms, value = _samples(times, measured, unit)
    status = _status(result, measured)
    if status.timed and any(sample >= foreign.FAILURE_MARK_MS for sample in samples_ms):
        status = TrialStatus.RUNTIME
    if status.timed and not samples_ms:
        raise EntryError("it is called correct and has no time")
    message = measured.get("message", {}).get("value")
    if not isinstance(message, str):
        message = value if isinstance(value, str) and not status.timed else ""
    return foreign.ForeignTrial(
        configuration=foreign.scalars(foreign.mapping(result.get("configuration"), "configuration")),
        status=status,
        message=message,
        samples_ms=samples_ms,
        recorded_at=foreign.moment_of(result.get("timestamp")),
        seconds=foreign.seconds_of(times, _PHASES, unit * 1e-3),
    )


def _named(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    entries = [
        foreign.mapping(one, "a measurement") for one in foreign.listed(result.get("measurements", []), "measurements")
    ]
    return {str(one.get("name")): one for one in entries}


def _samples(times: Mapping[str, Any], measured: Mapping[str, Any], unit: float) -> tuple[Sequence[float], object]:
    """The raw run times, or else the measured time; with what stands for the latter."""
    entry = measured.get("time", {})
    value = entry.get("value")
    raw = foreign.samples_of(foreign.listed(times.get("runtimes", []), "runtimes"), unit)
    own_unit = entry.get("unit") or ""
    return raw or foreign.samples_of(value, _milliseconds_in(own_unit) if own_unit else unit), value


def _status(result: Mapping[str, Any], measured: Mapping[str, Any]) -> TrialStatus:
    word, correctness = result.get("invalidity"), result.get("correctness", 1)
    if not isinstance(word, str) or word not in set(_WORDS.values()):
        raise EntryError(f"invalidity {word!r:.60} is not one of {', '.join(sorted(set(_WORDS.values())))}")
    if not foreign.is_number(correctness):
        raise EntryError(f"correctness {correctness!r:.60} is not a number")
    status = TrialStatus(word)
    if status is TrialStatus.CORRECT and correctness <= 0:
        return TrialStatus.CORRECTNESS
    pruned = measured.get("status", {}).get("value") == TrialStatus.PRUNED.value
    return TrialStatus.PRUNED if pruned and status is TrialStatus.CORRECT else status
