"""The benchmark of reading builds what the tables are now, and gets answers from it."""

from pathlib import Path

from tests.benchmarks.database import build, measure

from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import count_rows


def test_a_small_one_is_sound_and_answers(tmp_path: Path) -> None:
    file = tmp_path / "many.db"
    build(file, 20, 20)
    with open_database(file, read_only=True) as database:
        assert count_rows(database) == (20, 400)
        timings = measure(database, 1)
    rows = {timing.question: timing.rows for timing in timings}
    assert rows["newest trials"] == 100 and rows["best"] == 20
