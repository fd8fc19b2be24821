"""Tables fit the terminal: no line is wider, no word is broken, nothing is left out, and nothing commands it."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from tunebench.studies.display.terminal import one_line, print_facts, print_table, printable

COLUMNS = ("kernel", "problem", "median", "over reference", "configuration", "message")
ROWS = [
    (
        "scalar_mul",
        "rows=1024 columns=8192 float32",
        "1.25 ms",
        "2.000× [1.900, 2.100] faster",
        "block=32 unroll=1",
        "",
    ),
    ("weigh", "n=12 float16", "512 ms", "0.780× [0.770, 0.790] slower", "block=64 unroll=0", "the 漢字 are\nwide"),
]


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_a_table_fits_and_loses_nothing(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS, "Medians of interleaved rounds")
    out = capsys.readouterr().out
    assert all(cell_len(line) <= width for line in out.splitlines())
    shown = out.split()
    for word in " ".join(cell for row in ROWS for cell in row).split():
        assert word in shown, f"{word} is broken or missing at {width} columns"


def test_without_a_terminal_a_row_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(("a", "b"), [("x" * 500, "y " * 300), ("1", "2")])
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_word_that_is_longer_than_the_terminal_is_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(("digest", "size"), [("f" * 100, "3")])
    print_facts("source", [("digest", "0" * 100)])
    out = capsys.readouterr().out
    assert (out.count("f"), out.count("0")) == (100, 100)
    assert max(map(len, out.splitlines())) <= 40


def test_nothing_commands_the_terminal() -> None:
    assert printable("a\x1b[31m\n\tb\r\x00") == "a\\x1b[31m\n\tb\\x0d\\x00"
    assert one_line("a\nb\tc") == r"a\nb\tc"
