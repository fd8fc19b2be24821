"""The neutral record has the tables' columns, and refuses what the tables' constraints would."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from sample_database import content, fill

from tunebench.db.connection.database import Database
from tunebench.db.entries import entry as record
from tunebench.db.entries.codec import document_of, json_of, parts_of, value_of
from tunebench.db.entries.entry import Entry, entry_of_json
from tunebench.db.entries.reader import scan
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.schema import tables as models
from tunebench.tuner.device import Device
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem


@pytest.mark.parametrize(
    ("part", "table"),
    [
        (record.Origin, models.Origin),
        (Device, models.Device),
        (Environment, models.Environment),
        (Problem, models.Problem),
        (record.RecordedStudy, models.Study),
    ],
)
def test_a_part_that_is_shared_has_every_column_of_its_table(part: Any, table: type[models.Base]) -> None:
    columns = {column.name.removesuffix("_id") for column in table.__table__.columns} - {"id", "digest", "key"}
    assert columns == {one.name for one in parts_of(part)}


@pytest.fixture
def entries(database: Database) -> list[Entry]:
    fill(database)
    return list(scan(database))


def test_an_entry_survives_json(entries: list[Entry]) -> None:
    for entry in entries:
        assert repr(entry_of_json(json_of(entry))) == repr(entry)
        assert repr(value_of(Entry, document_of(entry))) == repr(entry)
    verdicts = [entry.trial.result.verdict for entry in entries if entry.trial]
    errors = [one.errors for one in verdicts if one is not None and not one.passed]
    assert [one.max_absolute for one in errors if one is not None] == [math.inf]


def test_a_scan_is_lossless_and_leaves_nothing_out(database: Database, entries: list[Entry]) -> None:
    assert len(entries) == 11
    assert sum(entry.trial is None for entry in entries) == 1
    assert sum(len(entry.trial.comparisons) for entry in entries if entry.trial) == 3
    assert content(database) == content(database)
    # Every field of every part has something in it somewhere, so that equality of entries means something.
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        _collect(entry, seen)
    missing = {(one.__name__, f.name) for one in _parts() if is_dataclass(one) for f in fields(one)} - seen
    assert not missing


def _parts() -> list[type]:
    own = (one for one in vars(record).values() if isinstance(one, type) and one.__module__ == record.__name__)
    return [one for one in own if not one.__name__.startswith("_")]


def _collect(value: Any, seen: set[tuple[str, str]]) -> None:
    if is_dataclass(value):
        for name, inner in vars(value).items():
            if inner is not None:
                seen.add((type(value).__name__, name))
            _collect(inner, seen)
    elif isinstance(value, dict | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            _collect(inner, seen)


def _change(values: dict[str, Any], path: str, new: Any) -> dict[str, Any]:
    changed = copy.deepcopy(values)
    part = changed
    *way, last = path.split(".")
    for name in way:
        part = part[name]
    if new is KeyError:
        del part[last]
    else:
        part[last] = new
    return changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("study", None),
        ("study.kernel", ""),
        ("study.kernel", 5),
        ("study.kernel", "k" * 10_001),
        ("study.kernel", "nul\0"),
        ("study.seed", 2**63),
        ("study.seed", 1.5),
        ("study.seed", True),
        ("study.seed", "0"),
        ("study.seed", KeyError),
        ("study.surprise", 1),
        ("study.begun_at", "yesterday"),
        ("study.begun_at", "2026-01-01T00:00:00"),
        ("study.begun_at", "0001-01-01T00:00:00+14:00"),
        ("study.compiler", "rm -rf /"),
        ("study.origin.uid", "../../etc/passwd"),
        ("study.device.kind", "tpu"),
        ("study.device.multiprocessors", 0),
        ("study.problem.axes", {"rows": -1}),
        ("study.problem.axes", [1]),
        ("study.problem.options", {"mode": 1}),
        ("trial.number", -1),
        ("trial.number", 2**40),
        ("trial.status", "excellent"),
        ("trial.status", "runtime"),
        ("trial.measurement", None),
        ("trial.measurement.samples_ms", []),
        ("trial.measurement.samples_ms", [1.0, 0.0]),
        ("trial.measurement.samples_ms", [math.inf]),
        ("trial.measurement.samples_ms", ["1"]),
        ("trial.measurement.median_ms", math.nan),
        ("trial.measurement.median_ms", 100.0),
        ("trial.measurement.regime", "lukewarm"),
        ("trial.verdict", None),
        ("trial.verdict.reason", "but no"),
        ("trial.verdict.untouched", None),
        ("trial.verdict.max_relative", "NaN"),
        ("trial.build", None),
        ("trial.build.code_bytes", -1),
        ("trial.build.log", "\0"),
        ("trial.build.figures", {"scale": 3}),
        ("trial.configuration", {"block": None}),
        ("trial.configuration", {"block": [1]}),
        ("trial.configuration", {"block": {"__reduce__": "os.system"}}),
        ("trial.configuration", {"block": 2**80}),
        ("trial.configuration", {"block": math.inf}),
        ("trial.seconds", {"check": math.inf}),
        ("trial.comparisons", {}),
    ],
)
def test_what_the_tables_would_refuse_is_refused_in_one_line(entries: list[Entry], path: str, new: Any) -> None:
    whole = document_of(entries[0])
    assert value_of(Entry, whole) == entries[0]
    with pytest.raises(EntryError) as refusal:
        value_of(Entry, _change(whole, path, new))
    message = str(refusal.value)
    assert message and "\n" not in message and len(message) < 500
    assert path.partition(".")[0] in message or "trial" in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"study": 1, "study": 1}',
        '{"study": NaN}',
        '{"study": ' + "9" * 5000 + "}",
        '{"study": 1e999, "trial": null}',
        '"\\ud800"',
        "\x80\x04K\x01.",
    ],
)
def test_what_is_not_json_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(EntryError) as refusal:
        entry_of_json(text)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 500


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(EntryError, match="UTF-8"):
        entry_of_json(b'{"study": "\xff\xfe"}')


def test_a_lone_surrogate_is_refused(entries: list[Entry]) -> None:
    text = json.dumps(_change(document_of(entries[0]), "study.kernel", "\ud800"))
    with pytest.raises(EntryError, match="kernel"):
        entry_of_json(text)
