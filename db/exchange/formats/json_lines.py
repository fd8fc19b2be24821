"""JSON Lines: one entry a line, with everything that a database holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

from tunebench.db.entries.entry import Entry, entry_of_json, json_of
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.exchange.formats.base import Format, FormatName, ImportOptions

_LONGEST_LINE = 256 << 20


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
        number = 0
        while line := stream.readline(_LONGEST_LINE + 1):
            number += 1
            try:
                if len(line) > _LONGEST_LINE:
                    raise EntryError(f"longer than {_LONGEST_LINE >> 20} MiB")
                if line.strip():
                    yield entry_of_json(line)
            except EntryError as error:
                raise EntryError(f"line {number}: {error}") from None
