"""The interface of every file format: entries to bytes, bytes to entries."""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tunebench.db.entries.entry import Entry
from tunebench.db.entries.strict_json import EntryError, parse_json
from tunebench.tuner.errors import UserError

LARGEST_FILE = 256 << 20
"""Bytes, unpacked, of a file that has to be read whole."""

LARGEST_ROW = 64 << 20
"""Bytes or characters of one line or row of a file that is read in pieces: twice the longest text of a trial."""


MOST_EMPTY_LINES = 1000
"""Empty lines in a file that is read line by line, whose editor or shell may have left some."""

_MOST_VALUES = 10_000_000
"""Values in a file that is read whole, which take one to two GB of memory while it is read."""


class FormatError(UserError):
    """A file that is not of its format, or holds what a database cannot; the message is one line."""


class FormatName(enum.StrEnum):
    """The formats, by the name that the command line uses."""

    JSON_LINES = "jsonl"
    T4 = "t4"
    KERNEL_TUNER = "kernel-tuner"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True)
class ImportOptions:
    """Facts that the user adds to a file of another tuner, which lacks them; None where the file decides.

    Attributes:
        device: the device's name.
        axes: the problem's sizes.
    """

    kernel: str | None = None
    device: str | None = None
    architecture: str | None = None
    dtype: str | None = None
    axes: Mapping[str, int] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether the user added nothing."""
        return self == ImportOptions()


class Format(abc.ABC):
    """Reads and writes one file format. A reader believes nothing: every entry passes `tunebench.db.entries.entry`."""

    name: FormatName
    foreign = False
    """Whether it is another tuner's: it holds one study, and not all that a database does."""

    @abc.abstractmethod
    def write(self, entries: Iterable[Entry], stream: BinaryIO) -> Mapping[str, bytes]:
        """Write entries.

        Returns:
            further files that belong beside it: contents by what their names add to its name's stem.
        """

    @abc.abstractmethod
    def read(self, stream: BinaryIO, name: str, options: ImportOptions) -> Iterator[Entry]:
        """The entries of a file, in its order.

        Args:
            name: the file's name without suffixes, for what has no better name.

        Raises:
            EntryError: it is not of this format; the message says where.
        """

    def require(self) -> None:  # noqa: B027
        """Make sure that what the format needs is installed.

        Raises:
            UserError: it is not; the message says how to get it.
        """


def read_whole(stream: BinaryIO) -> bytes:
    """All of a stream.

    Raises:
        EntryError: it is too large to be read whole.
    """
    content = stream.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise EntryError(f"larger than {LARGEST_FILE >> 20} MiB, which is the limit of a file that is read whole")
    return content


def parse_whole(data: bytes) -> Any:
    """Return the value of a file that is one piece of JSON.

    Raises:
        EntryError: it is not JSON, or too much of it.
    """
    return parse_json(data, _MOST_VALUES)
