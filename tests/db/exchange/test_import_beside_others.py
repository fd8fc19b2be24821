"""An import beside a process that records: both go on, and an import that was interrupted goes on as well."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from database_process import DatabaseProcess

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.bulk import Added
from tunebench.db.exchange.files import import_file
from tunebench.db.exchange.formats import FORMATS, FormatName
from tunebench.db.exchange.formats.base import FormatError
from tunebench.db.exchange.merge import merge_databases
from tunebench.db.queries.trials import count_rows

T4 = FORMATS[FormatName.T4]
TRIALS = 6000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Results of another tuner, enough for several transactions."""
    results = [
        {"configuration": {"a": number}, "invalidity": "correct", "times": {"runtimes": [1.0 + number]}}
        for number in range(TRIALS)
    ]
    path = tmp_path / "results-t4.json"
    path.write_text(json.dumps({"results": results}), encoding="utf-8")
    return path


class Recording:
    """A process that records one trial after the other, each in its own transaction, until it is stopped."""

    def __init__(self, database: Path) -> None:
        self.recorded = 0
        self._process = DatabaseProcess(database)
        self._process.open(0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._record)
        self._thread.start()

    def _record(self) -> None:
        while not self._stopped.is_set():
            self._process.record(0, range(self.recorded, self.recorded + 1))
            self.recorded += 1

    def stop(self) -> None:
        """Wait for the last one."""
        self._stopped.set()
        self._thread.join()
        self._process.end()


@pytest.mark.slow
def test_trials_are_recorded_while_an_import_runs(tmp_path: Path, file: Path) -> None:
    place = tmp_path / "results.db"
    with open_database(place) as database:
        recording = Recording(place)
        seen: list[int] = []
        added = import_file(database, file, T4, progress=lambda _: seen.append(recording.recorded))
        recording.stop()
        assert added == Added(studies=1, trials=TRIALS)
        # After its first transaction and before its last one others had their turn.
        assert len(seen) > 3 and seen[0] < seen[-1]
        assert count_rows(database)[1] == TRIALS + recording.recorded


@pytest.mark.slow
def test_trials_are_recorded_while_databases_are_merged(tmp_path: Path, file: Path) -> None:
    source, place = tmp_path / "source.db", tmp_path / "results.db"
    with open_database(source) as database:
        import_file(database, file, T4)
    open_database(place).close()
    recording = Recording(place)
    seen: list[int] = []
    ((_, added),) = merge_databases(place, [source], progress=lambda _: seen.append(recording.recorded))
    recording.stop()
    assert added == Added(studies=1, trials=TRIALS)
    assert seen[0] < seen[-1]
    with open_database(place, read_only=True) as database:
        assert count_rows(database)[1] == TRIALS + recording.recorded


@pytest.mark.slow
def test_an_import_that_was_interrupted_goes_on(database: Database, file: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_file(database, file, T4, checking=stop)
    assert count_rows(database) == (0, 0)
    with pytest.raises(KeyboardInterrupt):
        import_file(database, file, T4, progress=stop)
    there = count_rows(database)[1]
    assert 0 < there < TRIALS
    assert import_file(database, file, T4) == Added(trials=TRIALS - there, present=there)


def test_a_file_whose_last_result_is_wrong_adds_nothing(database: Database, file: Path) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    content["results"][-1]["invalidity"] = "odd"
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FormatError, match=f"result {TRIALS - 1}: "):
        import_file(database, file, T4)
    assert count_rows(database) == (0, 0)
