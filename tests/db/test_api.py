"""The Python interface as its documentation shows it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sample_results import ENVIRONMENT, STUDY, comparison, configuration, correct, failed
from sqlalchemy import text

from tunebench import db
from tunebench.db.entries.study_log import open_study
from tunebench.tuner.result import TrialStatus


@pytest.fixture
def filled(url: str) -> str:
    """A database with a winner and a failure."""
    with db.connect(url, read_only=False) as database:
        log = open_study(database, STUDY, ENVIRONMENT)
        log.record(0, correct(0, 0.1 + 0.2))
        log.record(1, failed(1, TrialStatus.COMPILE, 'error: "no",\nno'))
        log.conclude(comparison(0))
    return url


def test_every_name_is_there() -> None:
    assert all(getattr(db, name) is not None for name in db.__all__)
    assert set(db.__all__) <= set(dir(db))
    with pytest.raises(AttributeError, match="no attribute 'worst'"):
        db.worst  # noqa: B018


def test_connecting_reads_and_asks(filled: str) -> None:
    with db.connect(filled) as database:
        (row,) = db.best(database)
        assert (row.configuration, row.median_ms) == (configuration(0), 0.1 + 0.2)
        assert db.ask(database, "SELECT count(*) FROM trials_flat").rows == ((2,),)
        with pytest.raises(db.DatabaseError):
            open_study(database, STUDY, ENVIRONMENT)


def test_a_flat_row_has_the_view_s_columns(filled: str) -> None:
    with db.connect(filled) as database:
        rows = [db.flat_values(row) for row in reversed(db.trials(database))]
        query = f"SELECT {', '.join(db.FLAT_COLUMNS)} FROM trials_flat ORDER BY trial"
        with database.reading() as connection:
            viewed = [dict(row) for row in connection.execute(text(query)).mappings()]
    assert [tuple(row) for row in rows] == [db.FLAT_COLUMNS] * 2
    for row, other in zip(rows, viewed, strict=True):
        for name, value in row.items():
            found = (
                datetime.fromisoformat(other[name])
                if name.endswith("_at") and isinstance(other[name], str)
                else other[name]
            )
            assert found == value, name


def test_a_dataframe_has_a_column_for_every_tunable(filled: str) -> None:
    pytest.importorskip("pandas")
    with db.connect(filled) as database:
        frame = db.to_dataframe(db.trials(database))
    assert len(frame) == 2 and tuple(frame.columns[: len(db.FLAT_COLUMNS)]) == db.FLAT_COLUMNS
    assert list(frame["tunable_block"]) == [64, 32]
    assert list(frame["axis_rows"]) == [1024, 1024] and list(frame["option_mode"]) == ["eval", "eval"]
    assert frame["recorded_at"].iloc[0] <= datetime.now(UTC)
    assert tuple(db.to_dataframe([]).columns) == db.FLAT_COLUMNS


def test_without_pandas_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(db.UserError, match="needs pandas, which is not installed: pip install pandas"):
        db.to_dataframe([])


def test_nothing_is_imported_before_it_is_used(tmp_path: Path) -> None:
    code = "import sys, tunebench.db; sys.exit('sqlalchemy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
