"""Output for a terminal: text that cannot command it, and tables that fit it."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len

TRUSTED = " (trusted: it ran in one process with the judge)"
"""Stands behind what was found of a kernel, whose code whoever names it vouches for. Files run in other processes."""

_GAP = "  "
_LINES_OF_A_CELL = 2
"""A column is not made so narrow that its longest cell takes more lines than about this."""

_SHORT = 12
"""A column of so few characters is not wrapped at all: `1.25 ms` belongs together."""


_GREEN, _RED, _YELLOW = 32, 31, 33
_COLOURS = {"faster": _GREEN, "passed": _GREEN, "slower": _RED, "REFUSED": _RED, "inconclusive": _YELLOW}
"""The colours (SGR codes of ECMA-48) of the words that verdicts end with."""


def printable(text: str) -> str:
    """The text without what a terminal would obey: a database is anyone's, and ESC in it could rewrite the screen."""
    return "".join(
        character if character in "\n\t" or character.isprintable() else f"\\x{ord(character):02x}"
        for character in text
    )


def one_line(text: str) -> str:
    """The printable text with its line breaks and tabs written as `\\n` and `\\t`."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def output_width() -> int | None:
    """The columns of the terminal, or `$COLUMNS`; None where the output is neither, so that a row stays one line."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return max(20, shutil.get_terminal_size().columns)
    return None


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str = "",
    *,
    core: int | None = None,
    verbose: bool = True,
) -> None:
    """Print a table, the most important columns first.

    Where the table is wider than the terminal, cells are wrapped between words; columns that do not fit even so are
    printed below their row, each with its name, from the last column on.

    Args:
        core: only so many columns may be wrapped; each of the others is a column where it fits as it is.
        verbose: print the other columns that do not fit below their row; else one line says how to see them.
    """
    width = output_width()
    beside, left = len(columns), []
    if core is not None and width is not None:
        columns, rows, beside = _fitting_first(columns, rows, core, width)
        if not (verbose or len(rows) == 1):
            left = columns[beside:]
            columns, rows = columns[:beside], [row[:beside] for row in rows]
    for line in _table(columns, rows, title, width, beside):
        print(line)
    if left:
        print("\n".join(_wrapped(f"-v also shows: {', '.join(left)}", width)))


def print_line(text: str, *, error: bool = False) -> None:
    """Print one line, whatever is in the names that it mentions.

    Args:
        error: on standard error.
    """
    print(one_line(text), file=sys.stderr if error else sys.stdout)


def print_paragraph(text: str) -> None:
    """Print a paragraph, wrapped between words, and an empty line."""
    print("\n".join(_wrapped(one_line(text), output_width())) + "\n")


def print_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values below a title; a value that is too wide is wrapped beside its name."""
    width = output_width()
    print("\n".join(_wrapped(one_line(title), width)))
    indent = min(max((cell_len(name) for name, _ in facts), default=0), 24)
    for name, value in facts:
        shown = one_line(name)
        room = None if width is None else max(10, width - indent - 4)
        lines = [part for line in printable(value).splitlines() or [""] for part in _wrapped(line, room)]
        first = f"  {_padded(shown, indent)}{_GAP}{lines[0]}".rstrip()
        print("\n".join((first, *(" " * (indent + 4) + line for line in lines[1:]))))
    print()


def print_beside(label: str, texts: Sequence[str], indent: int) -> None:
    """Print texts below each other, wrapped beside a label that has so many columns; at once, not with what follows."""
    width = output_width()
    room = None if width is None else max(10, width - indent)
    lines = [part for text in texts for line in printable(text).splitlines() for part in _wrapped(line, room)]
    shown = [_padded(one_line(label), indent - len(_GAP)) + _GAP, *[" " * indent] * (len(lines) - 1)]
    print("\n".join(f"{before}{line}".rstrip() for before, line in zip(shown, lines, strict=True)), flush=True)


def _fitting_first(
    columns: Sequence[str], rows: Sequence[Sequence[str]], core: int, width: int
) -> tuple[list[str], list[list[str]], int]:
    """Return the table without empty columns, those first that fit beside the core, and how many these are."""
    beside, below = list(range(core)), []
    room = width + len(_GAP)
    for place, name in enumerate(columns):
        cells = [printable(row[place]) for row in rows]
        needed = len(_GAP) + _natural((name, *cells))
        if place < core or (any(cells) and needed <= room):
            room -= needed
            beside += [place] if place >= core else []
        elif any(cells):
            below.append(place)
    order = [*beside, *below]
    return [columns[place] for place in order], [[row[place] for place in order] for row in rows], len(beside)


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str, width: int | None, beside: int
) -> Iterator[str]:
    header = [one_line(column) for column in columns]
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = _widths(header[:beside], cells, width)
    if title:
        yield from _wrapped(one_line(title), width)
    yield from _beside(header, widths)
    yield _GAP.join("-" * one for one in widths)
    for row in cells:
        yield from _beside(row, widths)
        below = [f"{name}: {cell}" if name else cell for name, cell in zip(header, row, strict=True)][len(widths) :]
        yield from _flowing([text for text, cell in zip(below, row[len(widths) :], strict=True) if cell], width)


def _natural(texts: Iterable[str]) -> int:
    """Return the width of the longest line of some texts."""
    return max(cell_len(line) for text in texts for line in text.split("\n"))


def _widths(header: Sequence[str], cells: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """The widths of the columns that fit, from the first on; at least of the first one."""
    by_column = [[name, *(row[place] for row in cells)] for place, name in enumerate(header)]
    natural = [*map(_natural, by_column)]
    if width is None:
        return natural
    words = [max((cell_len(word) for text in texts for word in text.split()), default=0) for texts in by_column]
    least = [
        whole if whole <= _SHORT else max(word, -(-whole // _LINES_OF_A_CELL))
        for word, whole in zip(words, natural, strict=True)
    ]
    for count in range(len(header), 0, -1):
        room = width - len(_GAP) * (count - 1)
        if sum(least[:count]) <= room:
            return _grown(least[:count], natural[:count], room)
    return [width]


def _grown(least: Sequence[int], natural: Sequence[int], room: int) -> list[int]:
    """Return the widths with the rest of the room given to the columns that need it, the narrowest first."""
    widths = list(least)
    wanting = [place for place, whole in enumerate(natural) if widths[place] < whole]
    left = room - sum(widths)
    while left > 0 and wanting:
        place = min(wanting, key=widths.__getitem__)
        widths[place] += 1
        left -= 1
        wanting = [place for place in wanting if widths[place] < natural[place]]
    return widths


def _beside(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """The lines of a row's cells beside each other."""
    columns = [
        [part for line in cell.split("\n") for part in _wrapped(line, width)]
        for cell, width in zip(row, widths, strict=False)
    ]
    for number in range(max(map(len, columns))):
        parts = (column[number] if number < len(column) else "" for column in columns)
        yield _GAP.join(_coloured(_padded(part, width)) for part, width in zip(parts, widths, strict=True)).rstrip()


def _flowing(texts: Sequence[str], width: int | None) -> Iterator[str]:
    """Indented lines with as many of the texts as fit; one that is longer than a line is wrapped."""
    line = ""
    for text in texts:
        for part in _wrapped(text.replace("\n", " "), None if width is None else width - len(_GAP)):
            if line and (width is None or cell_len(line) + 2 * len(_GAP) + cell_len(part) <= width):
                line += _GAP + part
            else:
                if line:
                    yield line
                line = _GAP + part
    if line:
        yield line


def _coloured(text: str) -> str:
    """A cell that ends with a verdict in its colour, on a terminal whose user wants colours (no-color.org)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    colour = _COLOURS.get(text.rstrip().rpartition(" ")[2])
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _wrapped(text: str, width: int | None) -> list[str]:
    """Lines of at most that width, broken between words; only a word that is longer than a line is broken itself."""
    if width is None or cell_len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False, replace_whitespace=False) or [""]
