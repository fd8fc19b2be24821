"""Parquet: the flat table for data frames and warehouses, typed and compressed. Needs pyarrow."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, BinaryIO

from tunebench.db.connection.engine import first_line
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.exchange.formats.base import Format, FormatName, ImportOptions
from tunebench.db.exchange.formats.flat import cells_of, columns, entry_from
from tunebench.tuner.errors import UserError

_GROUP = 2_000
"""Rows at a time."""

_LARGEST_GROUP = 1 << 30
"""Bytes, unpacked, of a row group, of which the reader may have several columns in memory."""

_LARGEST_PIECE = 256 << 20
"""Bytes of text in the rows that are looked at together; a text that many rows share counts for each of them."""


class ParquetFormat(Format):
    """The columns of CSV with their types; moments are UTC microseconds, missing values nulls."""

    name = FormatName.PARQUET

    def require(self) -> None:
        """Make sure that pyarrow is installed.

        Raises:
            UserError: it is not.
        """
        try:
            for module in ("pyarrow", "pyarrow.parquet"):
                importlib.import_module(module)
        except ImportError as error:
            hint = "pip install 'tunebench[parquet]', or use another --format"
            raise UserError(f"Parquet needs pyarrow, which cannot be imported: {hint}") from error

    def write(self, entries: Iterable[Entry], stream: BinaryIO) -> Mapping[str, bytes]:
        """A row an entry, in row groups."""
        import pyarrow
        import pyarrow.parquet

        schema = _schema(pyarrow)
        source = iter(entries)
        with pyarrow.parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
            while rows := [cells_of(entry) for entry in islice(source, _GROUP)]:
                arrays = [
                    pyarrow.array(cells, type=one.type)
                    for cells, one in zip(zip(*rows, strict=True), schema, strict=True)
                ]
                writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
        return {}

    def read(self, stream: BinaryIO, name: str, options: ImportOptions) -> Iterator[Entry]:  # noqa: ARG002
        """An entry a row.

        Raises:
            EntryError: not Parquet, or a row is not an entry; the message has its number from 1.
        """
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet

        number = 0
        try:
            found = pyarrow.parquet.ParquetFile(stream).schema_arrow
            _require_schema(found, _schema(pyarrow))
            # What rows share is unpacked once, so that its size can be known before it is multiplied.
            texts = [one.name for one in found if one.type == pyarrow.string()]
            file = pyarrow.parquet.ParquetFile(stream, read_dictionary=texts)
            _require_groups(file.metadata)
            for batch in file.iter_batches(_GROUP):
                if _text_bytes(pyarrow.compute, batch) > _LARGEST_PIECE:
                    raise EntryError(f"{_GROUP} rows from here have more than {_LARGEST_PIECE >> 20} MiB of text")
                for row in batch.to_pylist():
                    number += 1
                    yield entry_from(row)
        except EntryError as error:
            raise EntryError(f"row {number}: {error}" if number else str(error)) from None
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            # The last two: text that is no text, moments outside the calendar.
            raise EntryError(f"not a Parquet file that can be read: {first_line(error)}") from None


def _schema(pyarrow: Any) -> Any:
    types: dict[type | None, Any] = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    types[datetime] = pyarrow.timestamp("us", tz="UTC")
    return pyarrow.schema([(column.name, types.get(column.kind, pyarrow.string())) for column in columns()])


def _require_schema(found: Any, own: Any) -> None:
    """Refuse columns of other names or types before any row is looked at."""
    types = {one.name: one.type for one in own}
    for one in found:
        if one.name not in types:
            raise EntryError(
                f"unknown column {one.name!r:.60}: tunebench's own files have columns such as study.kernel"
            )
        if one.type != types[one.name]:
            raise EntryError(f"column {one.name} is of type {one.type!s:.60} instead of {types[one.name]}")
    if len(set(found.names)) != len(found.names):
        raise EntryError("a column stands twice")


def _require_groups(metadata: Any) -> None:
    """Refuse row groups that take too much memory, by what the file itself tells of them."""
    for number in range(metadata.num_row_groups):
        if metadata.row_group(number).total_byte_size > _LARGEST_GROUP:
            raise EntryError(
                f"row group {number} takes more than {_LARGEST_GROUP >> 20} MiB, which is the limit: write smaller ones"
            )


def _text_bytes(compute: Any, batch: Any) -> int:
    """Return the bytes that the texts of a batch take when each row has its own."""
    total = 0
    for column in batch.columns:
        if hasattr(column, "dictionary"):
            total += compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    return total
