"""Merging databases: every result once, whatever the order, and nothing from what is not a results database."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sample_database import content, fill
from sample_results import ENVIRONMENT, H100, STUDY, correct

from tunebench.db.connection.database import open_database
from tunebench.db.entries.bulk import Added
from tunebench.db.entries.reader import scan
from tunebench.db.entries.study_log import open_study
from tunebench.db.exchange.merge import merge_databases
from tunebench.db.queries.trials import trials
from tunebench.db.upkeep.check import statistics
from tunebench.tuner.errors import DatabaseError, DatabaseMissingError, UserError


def make(file: Path, seed: int = 0) -> Path:
    with open_database(file) as database:
        fill(database, seed)
    return file


def merged(into: Path, *sources: Path) -> list[Added]:
    return [added for _, added in merge_databases(into, sources)]


def everything(file: Path) -> list[str]:
    with open_database(file, read_only=True) as database:
        return content(database)


def counts(file: Path) -> Mapping[str, int]:
    with open_database(file, read_only=True) as database:
        return statistics(database).rows


def copies(folder: Path, files: Iterable[Path]) -> list[Path]:
    folder.mkdir()
    return [Path(shutil.copy(file, folder)) for file in files]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two machines that tuned the same studies, and a third with others."""
    folder = tmp_path_factory.mktemp("machines")
    return [make(folder / "a.db"), make(folder / "b.db"), make(folder / "c.db", seed=7)]


@pytest.fixture
def machines(originals: list[Path], tmp_path: Path) -> list[Path]:
    """Copies of them."""
    return [Path(shutil.copy(one, tmp_path)) for one in originals]


def test_everything_of_every_machine_is_there_once(tmp_path: Path, machines: list[Path]) -> None:
    into = tmp_path / "all.db"
    assert merged(into, *machines) == [Added(studies=3, trials=10, comparisons=3, late_refusals=1)] * 3
    assert everything(into) == sorted(line for machine in machines for line in everything(machine))
    before = counts(into)
    # Parts that results share are there once: all three have the same devices, problems, builds.
    for name in ("devices", "problems", "environments", "configurations", "builds"):
        assert before[f"tunebench_{name}"] == counts(machines[0])[f"tunebench_{name}"]
    assert merged(into, *machines, *machines) == [Added(present=10)] * 6
    assert counts(into) == before


def test_the_same_study_of_two_machines_is_kept_under_both_origins(tmp_path: Path, machines: list[Path]) -> None:
    merged(tmp_path / "all.db", *machines[:2])
    with open_database(tmp_path / "all.db") as database:
        first = [entry for entry in scan(database) if entry.study.kernel == "scalar_mul" and entry.study.seed == 0]
        assert len({entry.study.origin.uid for entry in first}) == 2
        same = first[0].study
        assert {replace(e.study, origin=same.origin, begun_at=same.begun_at) == same for e in first} == {True}
        # What was measured here stays apart from both.
        open_study(database, STUDY, ENVIRONMENT).record(correct(0, 0.5))
        assert open_study(database, STUDY, ENVIRONMENT).past()[0].median_ms == 0.5


def test_the_order_does_not_matter_up_to_numbers(tmp_path: Path, machines: list[Path]) -> None:
    forth, back = copies(tmp_path / "forth", machines), copies(tmp_path / "back", machines)
    merged(forth[0], forth[1], forth[2])
    merged(back[2], back[0], back[1])
    assert everything(forth[0]) == everything(back[2])
    one, other = counts(forth[0]), counts(back[2])
    assert one == other
    # Merging the merged into each other changes nothing more.
    assert merged(forth[0], back[2])[0].trials == 0


def test_merging_in_a_circle_ends(tmp_path: Path, machines: list[Path]) -> None:
    a, b, _ = copies(tmp_path / "circle", machines)
    merged(a, b)
    merged(b, a)
    assert merged(a, b) == [Added(present=20)]
    assert everything(a) == everything(b)


def test_a_copy_that_was_tuned_further_adds_what_is_new(tmp_path: Path) -> None:
    original = make(tmp_path / "original.db")
    copy = Path(shutil.copy(original, tmp_path / "copy.db"))
    for file, median_ms in ((original, 0.7), (copy, 0.6)):
        with open_database(file) as database:
            log = open_study(database, replace(STUDY, seed=1000), ENVIRONMENT)
            log.record(correct(40, median_ms))
            log.record(correct(41 if file == original else 42, median_ms))
    # One configuration was tried by both: its second result is kept under a derived origin.
    assert merged(original, copy) == [Added(studies=1, trials=2, present=10, conflicts=1)]
    assert merged(original, copy) == [Added(present=12)]
    with open_database(original) as database:
        found = trials(database, kernel="scalar_mul", limit=None)
        assert sorted(row.median_ms or 0 for row in found if row.seed == 1000) == [0.6, 0.6, 0.7, 0.7]
        numbers = [(row.study_id, row.number) for row in found]
        assert len(set(numbers)) == len(numbers)


def test_a_device_of_another_machine_is_another_device(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as a, open_database(tmp_path / "b.db") as b:
        open_study(a, STUDY, ENVIRONMENT).record(correct(0))
        open_study(b, replace(STUDY, device=replace(H100, memory_bytes=1)), ENVIRONMENT).record(correct(0))
    merged(tmp_path / "all.db", tmp_path / "a.db", tmp_path / "b.db")
    assert counts(tmp_path / "all.db")["tunebench_devices"] == 2
    assert counts(tmp_path / "all.db")["tunebench_configurations"] == 1


def text_file(path: Path) -> None:
    path.write_text("not a database", encoding="utf-8")


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE cookies (name TEXT)")


def newer(path: Path) -> None:
    make(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tunebench_version SET version_num = '9999'")


def older(path: Path) -> None:
    make(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tunebench_version SET version_num = '0001'")


def truncated(path: Path) -> None:
    make(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("VACUUM")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def hostile(path: Path) -> None:
    """Its tables have no constraints, and its values are anything."""
    make(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(tunebench_trials)")]
        rows = connection.execute("SELECT * FROM tunebench_trials").fetchall()
        connection.execute("PRAGMA foreign_keys = 0")
        connection.execute("ALTER TABLE tunebench_trials RENAME TO tunebench_hidden")
        connection.execute(f"CREATE TABLE tunebench_trials ({', '.join(columns)})")
        connection.executemany(f"INSERT INTO tunebench_trials VALUES ({', '.join('?' * len(columns))})", rows)
        connection.execute("UPDATE tunebench_trials SET number = 'zero; DROP TABLE x' WHERE id = 3")


def dangling(path: Path) -> None:
    hostile(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tunebench_trials SET number = 2, build_id = 77 WHERE id = 3")


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [text_file, foreign, newer, older, truncated, hostile, dangling])
def test_what_is_no_database_of_results_is_refused_and_nothing_is_added(
    tmp_path: Path, machines: list[Path], spoil: object
) -> None:
    bad = tmp_path / "bad.db"
    spoil(bad)  # type: ignore[operator]
    was, before = bad.read_bytes(), everything(machines[0])
    with pytest.raises(DatabaseError) as refusal:
        merge_databases(machines[0], [machines[1], bad])
    assert "\n" not in str(refusal.value) and "bad.db" in str(refusal.value)
    assert everything(machines[0]) == before
    assert bad.read_bytes() == was


@pytest.mark.parametrize("spoil", [text_file, foreign, newer])
def test_a_target_that_is_no_database_of_results_is_left_alone(
    tmp_path: Path, machines: list[Path], spoil: object
) -> None:
    bad = tmp_path / "bad.db"
    spoil(bad)  # type: ignore[operator]
    was = bad.read_bytes()
    with pytest.raises(DatabaseError, match=r"bad\.db"):
        merge_databases(bad, machines)
    assert bad.read_bytes() == was


def test_a_missing_source_makes_no_target(tmp_path: Path) -> None:
    with pytest.raises(DatabaseMissingError):
        merge_databases(tmp_path / "all.db", [tmp_path / "nothing.db"])
    assert not (tmp_path / "all.db").exists()


def test_a_database_is_not_merged_into_itself(tmp_path: Path, machines: list[Path]) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(machines[0])
    for same in (machines[0], link, f"sqlite:///{machines[0]}"):
        with pytest.raises(UserError, match="into itself"):
            merge_databases(machines[0], [same])
    assert counts(machines[0])["tunebench_studies"] == 3
