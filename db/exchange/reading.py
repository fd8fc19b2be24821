"""The one place where files that a user names are opened for their results.

Such a file may be anyone's and anything: a pipe that never ends, a database that is open, a few kilobytes that unpack
to terabytes. What is read is held to a limit while it is unpacked.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from tunebench.db.connection.files import require_closed
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.exchange.formats import FORMATS, Format, FormatName, ImportOptions, format_by_name
from tunebench.db.exchange.formats.base import FormatError, read_whole
from tunebench.db.exchange.formats.kernel_tuner import parse_cache

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 20

_KEYS = {"results": FormatName.T4, "cache": FormatName.KERNEL_TUNER}
"""Formats of other tuners, by the key of the file's JSON object that identifies them."""

_UNDOUBTED = 256 << 20
"""Bytes that any compressed file may unpack to."""

_LARGEST_GROWTH = 200
"""How many times larger a compressed file may become beyond that; results become 5 to 50 times larger, zeros 1000."""


def read_entries(file: Path, form: Format, options: ImportOptions | None = None) -> Iterator[Entry]:
    """Yield the entries of a file, in its order.

    Raises:
        FormatError: the file cannot be read or is not of that format; the message is one line.
    """
    with _readable(file) as stream:
        yield from form.read(stream, stem(file), options or ImportOptions())


def format_of(file: Path) -> Format:
    """The format of a file by its name, or that of another tuner's `.json` file by what is in it.

    Raises:
        FormatError: neither says one, or the file cannot be read.
    """
    named = format_by_name(file)
    if named is not None:
        return named
    if not file.name.lower().removesuffix(".gz").endswith(".json"):
        raise FormatError(
            f"{file} is of no known format: its name ends in .jsonl, .csv, .parquet or .json, or it is imported "
            f"with --format ({', '.join(FormatName)})"
        )
    with _readable(file) as stream:
        data = read_whole(stream)
        found = [key for key in _KEYS if re.search(rf'"{key}"\s*:'.encode(), data)]
        if len(found) > 1:
            # Only then it takes reading the file twice to know which of them is the file's own.
            content = parse_cache(data)
            found = [key for key in found if key in content]
        if not found:
            raise EntryError("neither T4 results nor a Kernel Tuner cache file: there is no 'results' or 'cache' in it")
        return FORMATS[_KEYS[found[0]]]


def stem(file: Path) -> str:
    """The name without `.json`, `.gz` and their like, which the folders and the rest of it may not be taken for."""
    name = file.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


@contextmanager
def _readable(file: Path) -> Iterator[BinaryIO]:
    """The file's content, unpacked where it is compressed, whatever its name says.

    Raises:
        FormatError: it cannot be opened or unpacked, or reading it raised an `EntryError`.
    """
    require_closed(file)
    if file.exists() and not file.is_file():
        # Opening a pipe would wait for its other end.
        raise FormatError(f"cannot read {file}: it is {'a folder' if file.is_dir() else 'no regular file'}")
    try:
        with file.open("rb") as stream:
            packed = stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            stream.seek(0)
            yield cast(BinaryIO, io.BufferedReader(_Unpacked(stream, file.stat().st_size))) if packed else stream
    except EntryError as error:
        raise FormatError(f"{file}: {error}") from None
    except RecursionError:
        raise FormatError(f"{file}: nested too deeply") from None
    except (EOFError, zlib.error) as error:
        raise FormatError(f"{file}: the compressed data are damaged or cut off ({error})") from error
    except OSError as error:
        raise FormatError(f"cannot read {file}: {error.strerror or error}") from error


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a gzip stream, refused as soon as they exceed what results unpack to."""

    def __init__(self, packed: BinaryIO, packed_bytes: int) -> None:
        self._stream = gzip.GzipFile(fileobj=packed)
        self._limit = max(_UNDOUBTED, packed_bytes * _LARGEST_GROWTH)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        piece = self._stream.read(len(buffer))
        if self._stream.tell() > self._limit:
            raise EntryError(
                f"unpacks to more than {self._limit >> 20} MiB, which is the limit of a compressed file of its size: "
                "unpack it first if you trust it"
            )
        buffer[: len(piece)] = piece
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            while self.read(_PIECE):
                pass
            offset += self._stream.tell()
        elif whence == io.SEEK_CUR:
            offset += self._stream.tell()
        return self._stream.seek(offset)

    def tell(self) -> int:
        return self._stream.tell()
