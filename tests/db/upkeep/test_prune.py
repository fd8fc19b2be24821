"""What goes, what stays, and that rows are kept as they are again afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sample_database import content, fill
from sample_results import A100, ENVIRONMENT, STUDY, build, comparison, correct, failed
from sqlalchemy import delete, event, func, select, text

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.trials import best, trials
from tunebench.db.schema import tables
from tunebench.db.upkeep.check import inspect_database, statistics
from tunebench.db.upkeep.prune import Pruned, Pruning, prune
from tunebench.tuner.errors import DatabaseError, UserError
from tunebench.tuner.result import TrialStatus


@pytest.fixture
def filled(database: Database) -> Database:
    """Two kernels; the first has two sources and a comparison that its second trial won."""
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0))
    log.record(correct(1, 2.0))
    log.record(failed(2, TrialStatus.CORRECTNESS))
    log.conclude(comparison(0))
    log.conclude(comparison(1))
    other = open_study(database, replace(STUDY, source_digest="older"), ENVIRONMENT)
    other.record(correct(0))
    other.record(failed(1, TrialStatus.COMPILE))
    open_study(database, replace(STUDY, kernel="gemm", device=A100), ENVIRONMENT).record(correct(7))
    return database


def left(database: Database) -> list[tuple[str, str, int]]:
    rows = sorted(trials(database, limit=None), key=lambda row: row.trial_id)
    return [(row.kernel, row.source_digest, row.number) for row in rows]


def test_a_dry_run_counts_what_then_goes(filled: Database) -> None:
    for pruning in (
        Pruning(kernel="scalar_mul"),
        Pruning(source="old"),
        Pruning(before=datetime.now(UTC) + timedelta(days=1), kernel="gemm", winners=True),
    ):
        before = len(left(filled))
        expected = prune(filled, pruning)
        assert len(left(filled)) == before
        assert replace(prune(filled, pruning, dry_run=False), backup=None) == expected
        assert len(left(filled)) == before - expected.trials
        assert [one.problems for one in inspect_database(filled) if not one.sound] == []


def test_winners_stay_with_the_comparisons_they_won(filled: Database) -> None:
    """The best are trial 1 of one study and trial 0 of the other; trial 0 of the first won an older comparison."""
    expected = best(filled)
    pruned = prune(filled, Pruning(kernel="scalar_mul"), dry_run=False)
    assert (pruned.trials, pruned.studies, pruned.winners_kept) == (2, 0, 3)
    assert best(filled) == expected
    assert left(filled) == [
        ("scalar_mul", "source-1", 0),
        ("scalar_mul", "source-1", 1),
        ("scalar_mul", "older", 0),
        ("gemm", "source-1", 0),
    ]
    rows = statistics(filled).rows
    assert (rows["tunebench_comparisons"], rows["tunebench_trials"], rows["tunebench_configurations"]) == (2, 4, 3)


def test_what_is_shared_stays_until_nothing_refers_to_it(filled: Database) -> None:
    prune(filled, Pruning(source="older", winners=True), dry_run=False)
    with filled.reading() as connection:
        digests = set(connection.scalars(select(tables.Build.variant_digest)))
    assert digests == {build(number).variant_digest for number in (0, 1, 2, 7)}
    prune(filled, Pruning(kernel="scalar_mul", winners=True), dry_run=False)
    rows = statistics(filled).rows
    assert {rows[f"tunebench_{name}"] for name in ("studies", "trials", "builds", "configurations")} == {1}
    assert rows["tunebench_comparisons"] == 0


def test_only_what_is_older_goes(filled: Database) -> None:
    assert prune(filled, Pruning(before=datetime(2020, 1, 1, tzinfo=UTC), winners=True)).trials == 0
    assert prune(filled, Pruning(before=datetime.now(UTC), winners=True)) == Pruned(6, 3, 0)


def test_rows_cannot_be_removed_otherwise_before_or_after(filled: Database) -> None:
    prune(filled, Pruning(kernel="gemm", winners=True), dry_run=False)
    with pytest.raises(DatabaseError, match="only ever added"), filled.writing() as connection:
        connection.execute(delete(tables.Trial))


def test_a_pruning_that_fails_changes_nothing(filled: Database) -> None:
    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM tunebench_studies"):
            raise RuntimeError("killed")

    before = statistics(filled).rows
    event.listen(filled.engine, "before_cursor_execute", fail)
    with pytest.raises(RuntimeError, match="killed"):
        prune(filled, Pruning(kernel="scalar_mul", winners=True), dry_run=False)
    event.remove(filled.engine, "before_cursor_execute", fail)
    assert statistics(filled).rows == before
    with pytest.raises(DatabaseError, match="only ever added"), filled.writing() as connection:
        connection.execute(delete(tables.Trial))


def test_a_pruned_study_goes_on(filled: Database) -> None:
    prune(filled, Pruning(kernel="scalar_mul", source="source-1"), dry_run=False)
    log = open_study(filled, STUDY, ENVIRONMENT)
    assert [trial.number for trial in log.past()] == [0, 1]
    log.record(correct(3))
    with filled.reading() as connection:
        newest = connection.scalar(select(func.max(tables.Trial.id)))
    assert newest == 7, "a number is never used again"


def test_the_file_as_it_was_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    with open_database(file) as database:
        fill(database)
        before = content(database)
        assert prune(database, Pruning(kernel="nothing"), dry_run=False).backup is None
        copy = prune(database, Pruning(kernel="gemm_scale_bn", winners=True), dry_run=False).backup
        assert copy == tmp_path / "results.db.before-prune.backup"
        assert prune(database, Pruning(kernel="scalar_mul"), dry_run=False, backup=False).backup is None
        assert content(database) != before
    with open_database(copy, read_only=True) as database:
        assert content(database) == before


def test_text_is_a_value_and_nothing_is_pruned_without_a_condition(filled: Database, tmp_path: Path) -> None:
    assert prune(filled, Pruning(kernel="' OR 1 = 1 --", winners=True), dry_run=False).trials == 0
    assert prune(filled, Pruning(source="%", winners=True), dry_run=False).trials == 0
    with pytest.raises(UserError, match="this would remove every result"):
        prune(filled, Pruning(winners=True), dry_run=False)
    open_database(tmp_path / "other.db").close()
    with open_database(tmp_path / "other.db", read_only=True) as reading, pytest.raises(DatabaseError):
        prune(reading, Pruning(kernel="gemm"), dry_run=False)
    with filled.reading() as connection:
        assert connection.scalar(text("SELECT count(*) FROM trials_flat")) == 6
