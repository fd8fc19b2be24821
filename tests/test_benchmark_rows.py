"""A benchmark's rows: what is there when a run is cut off is not measured again."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.rows import Row, Rows, part_of, read_rows


def measure(file: Path, until: int = 3, **settings: str) -> list[int]:
    """Which of three rows a run had to make that is cut off before one of them."""
    made = []
    with Rows(file, ("kernel", "n"), lambda row: f"row {row['n']}", **settings) as rows:
        for number in range(3):
            if not rows.has("weigh", number):
                if number == until:
                    raise KeyboardInterrupt
                made.append(number)
                rows.add({"kernel": "weigh", "n": number, "ratio": [1.0, 2.0]})
    return made


def test_a_run_goes_on_where_it_was_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        measure(file, until=2)
    found, are_all = read_rows(file)
    assert [row["n"] for row in found] == [0, 1] and not are_all and not file.exists()
    capsys.readouterr()
    assert measure(file) == [2]
    printed = capsys.readouterr().out
    assert "2 rows are in" in printed and all(f"row {number}" in printed for number in range(3))
    found, are_all = read_rows(file)
    assert [row["n"] for row in found] == [0, 1, 2] and are_all and not part_of(file).exists()
    assert all(row["seconds"] >= 0 for row in found)
    assert measure(file) == [0, 1, 2], "what is whole is made anew"


def test_rows_of_other_settings_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        measure(file, until=2, policy="best")
    assert measure(file, policy="recorded") == [0, 1, 2]
    assert "begun anew" in capsys.readouterr().out


def test_without_a_file_rows_are_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Row] = []
    with Rows(None, ("n",), lambda row: f"row {row['n']}") as made:
        made.add({"n": 1})
        rows += made
    assert rows[0]["n"] == 1 and "1 rows took" in capsys.readouterr().out
