"""CSV: a table of trials for spreadsheets and data frames, with everything that a database holds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

from tunebench.db.entries.entry import Entry
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.exchange.formats.base import LARGEST_ROW, MOST_EMPTY_LINES, Format, FormatName, ImportOptions
from tunebench.db.exchange.formats.flat import Cell, Column, cells_of, columns, entry_from
from tunebench.db.queries.data_frames import csv_text


class CsvFormat(Format):
    """RFC 4180 in UTF-8, a header first. An empty cell is a missing value, or an empty text where text must be."""

    name = FormatName.CSV

    def write(self, entries: Iterable[Entry], stream: BinaryIO) -> Mapping[str, bytes]:
        """A header, then a row an entry."""
        with _Text(stream) as text:
            writer = csv.writer(text)
            writer.writerow(column.name for column in columns())
            for entry in entries:
                writer.writerow(csv_text(cell) for cell in cells_of(entry))
        return {}

    def read(self, stream: BinaryIO, name: str, options: ImportOptions) -> Iterator[Entry]:  # noqa: ARG002
        """An entry a row.

        Raises:
            EntryError: a row is not an entry; the message has the number of its last line.
        """
        csv.field_size_limit(LARGEST_ROW)
        with _Text(stream) as text:
            lines = _Lines(text)
            reader = csv.reader(lines, strict=True)
            try:
                header, empty = _header(next(reader, [])), 0
                for cells in reader:
                    lines.row_ended()
                    if cells:
                        yield entry_from(_row(header, cells))
                        continue
                    empty += 1
                    if empty > MOST_EMPTY_LINES:
                        raise EntryError(f"more than {MOST_EMPTY_LINES} empty lines")
            except UnicodeDecodeError:
                raise EntryError(f"line {reader.line_num + 1}: not UTF-8 text") from None
            except (EntryError, csv.Error) as error:
                raise EntryError(f"line {reader.line_num}: {error}") from None


class _Text(io.TextIOWrapper):
    """Text on a stream that its owner closes."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="utf-8", newline="")

    def close(self) -> None:
        self.flush()
        self.detach()


class _Lines:
    """The lines of a text; a row, which takes several where a cell has line ends in it, is held to `LARGEST_ROW`."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._left = LARGEST_ROW

    def row_ended(self) -> None:
        """The next line begins another row."""
        self._left = LARGEST_ROW

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(self._left + 1):
            self._left -= len(line)
            if self._left < 0:
                raise EntryError(f"longer than {LARGEST_ROW >> 20} MiB, which is the limit of a row")
            yield line


def _header(names: Sequence[str]) -> list[Column]:
    known = {column.name: column for column in columns()}
    for name in names:
        if name not in known:
            raise EntryError(
                f"unknown column {name!r:.60}: tunebench's own CSV files have columns such as study.kernel"
            )
    if len(set(names)) != len(names) or not names:
        raise EntryError("a column stands twice in the header" if names else "there is no header")
    return [known[name] for name in names]


def _row(header: Sequence[Column], cells: Sequence[str]) -> dict[str, Cell]:
    if len(cells) != len(header):
        raise EntryError(f"{len(cells)} cells under {len(header)} columns")
    return {column.name: _read(column, cell) for column, cell in zip(header, cells, strict=True) if cell}


def _read(column: Column, cell: str) -> Cell:
    """Return the value of a cell's text; text, moments and JSON are checked later."""
    if column.kind is bool:
        if cell.lower() not in ("true", "false"):
            raise EntryError(f"{column.name}: {cell!r:.60} is neither true nor false")
        return cell.lower() == "true"
    try:
        return column.kind(cell) if column.kind in (int, float) else cell
    except ValueError:
        raise EntryError(f"{column.name}: {cell!r:.60} is not a number") from None
