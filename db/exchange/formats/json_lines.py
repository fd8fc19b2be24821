"""JSON Lines: one entry a line, with everything that a database holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

from tunebench.db.entries.codec import json_of
from tunebench.db.entries.entry import Entry, entry_of_json
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.exchange.formats.base import LARGEST_ROW, MOST_EMPTY_LINES, Format, FormatName, ImportOptions


class JsonLinesFormat(Format):
    """Lossless, streamed in both directions."""

    name = FormatName.JSON_LINES

    def write(self, entries: Iterable[Entry], stream: BinaryIO) -> Mapping[str, bytes]:
        """One line an entry."""
        for entry in entries:
            stream.write(json_of(entry) + b"\n")
        return {}

    def read(self, stream: BinaryIO, name: str, options: ImportOptions) -> Iterator[Entry]:  # noqa: ARG002
        """One entry a line; empty lines are passed over.

        Raises:
            EntryError: a line is not an entry; the message has its number.
        """
        number = empty = 0
        while line := stream.readline(LARGEST_ROW + 1):
            number += 1
            try:
                if len(line) > LARGEST_ROW:
                    raise EntryError(f"longer than {LARGEST_ROW >> 20} MiB, which is the limit of a line")
                if line.strip():
                    yield entry_of_json(line)
                    continue
                empty += 1
                if empty > MOST_EMPTY_LINES:
                    raise EntryError(f"more than {MOST_EMPTY_LINES} empty lines")
            except EntryError as error:
                raise EntryError(f"line {number}: {error}") from None
