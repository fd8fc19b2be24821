"""A fact that a measurement gets is in every database, file and answer from then on, without a line of `db/`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from command_line import CommandLine
from sample_database import place_of
from sample_results import ENVIRONMENT, STUDY, correct

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries import codec
from tunebench.db.entries.reader import scan
from tunebench.db.entries.study_log import open_study
from tunebench.db.exchange.files import export_file, import_file
from tunebench.db.exchange.formats import FORMATS, FormatName, flat
from tunebench.db.upkeep.check import inspect_database
from tunebench.tuner import result
from tunebench.tuner.result import CacheRegime


@dataclass(frozen=True)
class Leak:
    """A fact of several parts, one of which JSON cannot say."""

    regime: CacheRegime
    watts: float
    by_rail: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Measured(result.Measurement):
    """A measurement that also has energy."""

    energy_j: float | None = None
    leak: Leak | None = None


@pytest.fixture
def _energy_is_measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    caches = (codec._validator, codec._serializer, flat.columns, flat._missing)
    monkeypatch.setattr(result, "Measurement", Measured)
    for cache in caches:
        cache.cache_clear()
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("_energy_is_measured")
@pytest.mark.parametrize("form", [FormatName.JSON_LINES, FormatName.CSV, FormatName.PARQUET])
def test_it_is_written_read_exported_imported_and_answered(
    database: Database, tmp_path: Path, run: CommandLine, form: FormatName
) -> None:
    if form is FormatName.PARQUET:
        pytest.importorskip("pyarrow")
    plain = correct(0)
    assert plain.measurement is not None
    measured = Measured(
        **vars(plain.measurement), energy_j=0.25, leak=Leak(CacheRegime.WARM, math.inf, {"core": (1, 2)})
    )
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(replace(plain, measurement=measured))
    assert log.result(0).measurement == measured
    assert [one.problems for one in inspect_database(database) if not one.sound] == []

    file = tmp_path / "results"
    export_file(database, file, FORMATS[form])
    with open_database(tmp_path / "copy.db") as copy:
        import_file(copy, file, FORMATS[form])
        (entry,) = scan(copy)
    assert entry.trial is not None and entry.trial.result.measurement == measured

    # An agent is told what `--json` prints.
    answer = run("show", "1", "--json", "--db", place_of(database)).json
    assert answer["measurement"]["energy_j"] == 0.25
    assert answer["measurement"]["leak"]["by_rail"] == {"core": [1, 2]}
