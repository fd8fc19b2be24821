"""Kernel Tuner's cache files: one object whose `cache` has a configuration's results under `v1,v2,…`.

Source: https://github.com/KernelTuner/kernel_tuner (`kernel_tuner/util.py`, cache files of version 1.x).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, Any, BinaryIO

from tunebench.db.entries.entry import Entry, RecordedStudy
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.exchange.formats import foreign
from tunebench.db.exchange.formats.base import Format, FormatError, FormatName, ImportOptions, parse_whole, read_whole
from tunebench.tuner.result import TrialResult, TrialStatus

_FAILURES = {
    "InvalidConfig": TrialStatus.CONSTRAINTS,
    "CompilationFailedConfig": TrialStatus.COMPILE,
    "RuntimeFailedConfig": TrialStatus.RUNTIME,
    "ErrorConfig": TrialStatus.RUNTIME,
}
_WORDS = {status: word for word, status in _FAILURES.items() if word != "ErrorConfig"} | {
    TrialStatus.CORRECTNESS: "RuntimeFailedConfig",
    TrialStatus.TIMEOUT: "RuntimeFailedConfig",
}
_PHASES = {
    "compile_time": "compile",
    "verification_time": "check",
    "benchmark_time": "measure",
    "strategy_time": "search",
    "framework_time": "framework",
}
_STATUS, _MESSAGE = "tunebench_status", "tunebench_message"
_ERROR = "__error__"
_OWN_NAMES = {"time", "times", "timestamp", _ERROR, _STATUS, _MESSAGE, *_PHASES}
_AXES = ("x", "y", "z")
_IN_MEMORY = 16 << 20


class KernelTunerFormat(Format):
    """All of one study: a cache file that Kernel Tuner can go on with or simulate from."""

    name = FormatName.KERNEL_TUNER
    foreign = True

    def write(self, entries: Iterable[Entry], stream: BinaryIO) -> Mapping[str, bytes]:
        """The trials follow what they have in common, which is known when all have been seen."""
        study: RecordedStudy | None = None
        values: dict[str, dict[tuple[type, Any], None]] = {}
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool:
            for entry in entries:
                study = entry.study
                if entry.trial is not None:
                    for name, value in entry.trial.result.configuration.items():
                        # The type tells 1 from true, which are equal.
                        values.setdefault(name, {})[type(value), value] = None
                    plain = _plain(entry.trial.standing, entry.trial.recorded_at)
                    spool.write(json.dumps(plain, allow_nan=False).encode() + b"\n")
            spool.seek(0)
            _write_file(study, {name: [v for _, v in seen] for name, seen in values.items()}, spool, stream)
        return {}

    def read(self, stream: BinaryIO, name: str, options: ImportOptions) -> Iterator[Entry]:
        """An entry a configuration.

        Raises:
            EntryError: not a cache file; the message says which configuration is wrong.
        """
        content = parse_cache(read_whole(stream))
        if "cache" not in content:
            raise EntryError("there is no 'cache' in it, as there is in Kernel Tuner's cache files")
        names = _tunables(content)
        study = _study(content, name, names).values(options)
        for key, result in foreign.mapping(content["cache"], "cache").items():
            try:
                yield _trial(foreign.mapping(result, "it"), names).entry(study, "Kernel Tuner")
            except EntryError as error:
                raise EntryError(f"configuration {key!r:.80}: {error}") from None


def _plain(trial: TrialResult, recorded_at: datetime) -> dict[str, Any]:
    """A trial's own part of its cache entry."""
    measured = trial.measurement
    result: dict[str, Any] = dict(trial.configuration)
    for name in result:
        if name in _OWN_NAMES:
            raise FormatError(
                f"tunable '{name}' has a name that Kernel Tuner's format uses itself: use another --format"
            )
    result["time"] = sum(measured.samples_ms) / len(measured.samples_ms) if measured else _WORDS[trial.status]
    if measured is not None:
        result["times"] = list(measured.samples_ms)
    result |= {theirs: trial.seconds.get(ours, 0.0) * 1e3 for theirs, ours in _PHASES.items()}
    if trial.status not in (TrialStatus.CORRECT, *_FAILURES.values()):
        result[_STATUS] = trial.status.value
    if trial.message:
        result[_MESSAGE] = trial.message
    return result | {"timestamp": recorded_at.isoformat(sep=" ")}


def _write_file(
    study: RecordedStudy | None, values: Mapping[str, Sequence[Any]], spool: IO[bytes], out: BinaryIO
) -> None:
    axes = list(study.problem.axes.values()) if study else []
    header = {
        "device_name": study.device.name if study else "",
        "kernel_name": study.kernel if study else "",
        "problem_size": axes,
        "tune_params_keys": list(values),
        "tune_params": {name: _ordered(seen) for name, seen in values.items()},
        "objective": "time",
    }
    out.write(json.dumps(header, indent=0)[:-2].encode() + b',\n"cache": {')
    separator = b"\n"
    for line in spool:
        # Every tunable needs a value there; one that does not matter to a configuration gets its first.
        result = {name: seen[0] for name, seen in values.items()} | json.loads(line)
        key = ",".join(str(result[name]) for name in values)
        out.write(separator + f"{json.dumps(key)}: {json.dumps(result)}".encode())
        separator = b",\n"
    out.write(b"}\n}")


def _ordered(values: Sequence[Any]) -> list[Any]:
    return sorted(values) if all(isinstance(value, int | float) for value in values) else list(values)


def parse_cache(data: bytes) -> dict[str, Any]:
    """The file's object; one that is being appended to lacks its last braces, or ends inside a configuration.

    Raises:
        EntryError: it is not JSON, however it is completed.
    """
    first: EntryError | None = None
    begun = data.rstrip().removesuffix(b",")
    whole = begun[: begun.rfind(b"}") + 1]
    for text, end in ((begun, b""), (whole, b"}"), (whole, b"}}")):
        try:
            return foreign.mapping(parse_whole(text + end), "the file")
        except EntryError as error:
            first = first or error
    raise first or EntryError("empty")


def _tunables(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declared values of the tunables by name, in the file's order; empty text where there are none."""
    declared = foreign.mapping(content.get("tune_params", {}), "tune_params")
    names = foreign.listed(content.get("tune_params_keys", list(declared)), "tune_params_keys")
    if not all(isinstance(name, str) for name in names):
        raise EntryError("tune_params_keys are not all names")
    if not names:
        raise EntryError("there are no tune_params_keys in it")
    return {name: declared.get(name, "") for name in names}


def _study(content: Mapping[str, Any], name: str, tunables: Mapping[str, Any]) -> foreign.ForeignStudy:
    axes, options = _problem(content.get("problem_size"))
    kernel, device = content.get("kernel_name") or name, content.get("device_name") or foreign.UNKNOWN
    return foreign.ForeignStudy(FormatName.KERNEL_TUNER, kernel, device, axes, options, tunables)


def _problem(size: object) -> tuple[dict[str, object], dict[str, str]]:
    """Axes x, y and z from sizes; anything else is kept as an option."""
    sizes = size if isinstance(size, list) else [size]
    if 0 < len(sizes) <= len(_AXES) and all(type(one) is int and one >= 0 for one in sizes):
        return dict(zip(_AXES, sizes, strict=False)), {}
    return {}, {} if size in (None, []) else {"problem_size": size if isinstance(size, str) else json.dumps(size)}


def _trial(result: Mapping[str, Any], names: Mapping[str, Any]) -> foreign.ForeignTrial:
    for name in names:
        if name not in result:
            raise EntryError(f"tunable {name!r:.60} has no value")
    # Since 1.1, a failure's name stands under a key of its own.
    value, message = result.get(_ERROR, result.get("time")), result.get(_MESSAGE, "")
    status = _status(value, result.get(_STATUS))
    samples_ms = (foreign.samples_of(result.get("times")) or foreign.samples_of(value)) if status.timed else []
    if status.timed and not samples_ms:
        raise EntryError(f"its time {value!r:.60} is neither a number nor a failure's name")
    return foreign.ForeignTrial(
        configuration=foreign.scalars({name: result[name] for name in names}),
        status=status,
        message=message if isinstance(message, str) and message else "" if status.timed else str(value),
        samples_ms=samples_ms,
        recorded_at=foreign.moment_of(result.get("timestamp")),
        seconds=foreign.seconds_of(result, _PHASES),
    )


def _status(value: object, own_word: object) -> TrialStatus:
    """The status that a time or a failure's name stands for.

    Args:
        own_word: the status that tunebench wrote beside it. It can make a failure more precise and is ignored where it
            contradicts the time.
    """
    if isinstance(value, str):
        if value not in _FAILURES:
            raise EntryError(f"its time {value!r:.60} is not one of the failures {', '.join(_FAILURES)}")
        finer = (TrialStatus.CORRECTNESS, TrialStatus.TIMEOUT) if value == "RuntimeFailedConfig" else ()
        return next((status for status in finer if status.value == own_word), _FAILURES[value])
    if isinstance(value, int | float) and value >= foreign.FAILURE_MARK_MS:
        return TrialStatus.RUNTIME
    return TrialStatus.PRUNED if own_word == TrialStatus.PRUNED.value else TrialStatus.CORRECT
