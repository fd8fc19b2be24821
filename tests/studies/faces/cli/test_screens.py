"""The screens that people see first, at 80 and 120 columns, as `screens.txt` has them.

With TUNEBENCH_RENEW_SCREENS=1 the file is written anew, to be looked at before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import CommandLine
from rich.cells import cell_len

from tunebench.db.connection.database import open_database
from tunebench.db.exchange.files import import_file
from tunebench.db.exchange.formats import format_named

SCREENS = Path(__file__).with_name("screens.txt")
SPACES = Path(__file__).parents[4] / "docs" / "results" / "spaces" / "h200.jsonl.gz"
COMMANDS = ("--help", "best --any-source", "best scalar_mul --any-source", "studies", "trials --fastest --limit 5")


@pytest.mark.slow
def test_every_screen_is_the_recorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.db"
    with open_database(file) as database:
        import_file(database, SPACES, format_named("jsonl"))
    monkeypatch.setenv("TUNEBENCH_DB", str(file))
    ask = CommandLine(monkeypatch, capsys)
    shown = []
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        for command in COMMANDS:
            screen = ask(*command.split()).out
            assert max(map(cell_len, screen.splitlines())) <= width
            shown.append(f"--- {width} columns: tunebench {command}\n{screen}")
    text = "\n".join(shown)
    if os.environ.get("TUNEBENCH_RENEW_SCREENS"):
        SCREENS.write_text(text, encoding="utf-8")
    assert text == SCREENS.read_text(encoding="utf-8")
