"""Trials as flat rows and as data frames."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pytest
from sample_results import ENVIRONMENT, STUDY, comparison, correct, failed

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.data_frames import FLAT_COLUMNS, to_dataframe
from tunebench.db.queries.trials import trials
from tunebench.tuner.errors import UserError
from tunebench.tuner.result import TrialStatus


@pytest.fixture
def filled(database: Database) -> Database:
    """A database with a winner and a failure."""
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0, 0.1 + 0.2))
    log.record(failed(1, TrialStatus.COMPILE, 'error: "no",\nno'))
    log.conclude(comparison(0))
    return database


def test_a_dataframe_has_a_column_for_every_tunable(filled: Database) -> None:
    pytest.importorskip("pandas")
    frame = to_dataframe(trials(filled))
    assert len(frame) == 2 and tuple(frame.columns[: len(FLAT_COLUMNS)]) == FLAT_COLUMNS
    assert list(frame["tunable_block"]) == [64, 32]
    assert list(frame["axis_rows"]) == [1024, 1024] and list(frame["option_mode"]) == ["eval", "eval"]
    assert frame["recorded_at"].iloc[0] <= datetime.now(UTC)
    assert tuple(to_dataframe([]).columns) == FLAT_COLUMNS


def test_without_pandas_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="needs pandas, which is not installed: pip install pandas"):
        to_dataframe([])
