"""Entries between databases and files: export to a file, import from one."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tunebench.db.connection.database import Database
from tunebench.db.connection.engine import file_of
from tunebench.db.entries.bulk import Added, add_entries
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.reader import StudyFilter, matching_studies, scan
from tunebench.db.exchange.formats.base import Format, FormatError, ImportOptions
from tunebench.db.exchange.reading import read_entries, stem
from tunebench.tuner.errors import UserError

_EVERY = 1000

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        files: the file asked for, then what belongs beside it.
        studies, trials: how many are in it.
    """

    files: tuple[Path, ...]
    studies: int
    trials: int


def export_file(
    database: Database,
    file: Path,
    form: Format,
    *,
    which: StudyFilter | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write studies to a file, compressed where its name ends in `.gz`. It appears when it is complete.

    Args:
        which: None for all studies.
        replace: an existing file is replaced.
        progress: called now and then with the number of entries written.

    Raises:
        UserError: the format holds one study and several are meant, or a package is missing.
        FormatError: the file exists, or cannot be written.
        DatabaseError: the database cannot be read.
    """
    form.require()
    studies = matching_studies(database, which or StudyFilter())
    if form.foreign and len(studies) != 1:
        some = ", ".join(str(study) for study in studies[:10]) + (", …" if len(studies) > 10 else "")
        raise UserError(f"a {form.name} file holds one study, {len(studies)} are meant: say --study (here: {some})")
    _require_free(database, file, replace=replace)
    counter = _Counter(scan(database, studies if which and which != StudyFilter() else None), progress)
    with _appearing(file) as (stream, partial):
        with _compressed(stream, file) as plain:
            beside = form.write(counter, plain)
        files = [file]
        for suffix, content in beside.items():
            companion = file.with_name(stem(file) + suffix)
            _require_free(database, companion, replace=replace)
            companion.write_bytes(content)
            files.append(companion)
        partial.replace(file)
    return Exported(tuple(files), len(studies), counter.trials)


def import_file(
    database: Database,
    file: Path,
    form: Format,
    *,
    options: ImportOptions | None = None,
    progress: Progress | None = None,
) -> Added:
    """Add what a file holds to a database, in one transaction: all of it, or nothing where anything in it is wrong.

    Args:
        options: what the user adds to a file of another tuner.
        progress: called now and then with the number of entries read.

    Raises:
        UserError: there are options for a file that says itself what was tuned, or a package is missing.
        FormatError: the file cannot be read or is not of that format; the message is one line.
        DatabaseError: the database cannot be written.
    """
    form.require()
    options = options or ImportOptions()
    if not form.foreign and not options.empty:
        raise UserError(f"a {form.name} file says itself what was tuned: leave out options such as --kernel")
    return add_entries(database, read_entries(file, form, options), progress)


class _Counter:
    """Entries on their way, counted."""

    def __init__(self, entries: Iterable[Entry], progress: Progress | None) -> None:
        self.trials = 0
        self._entries = entries
        self._progress = progress

    def __iter__(self) -> Iterator[Entry]:
        for number, entry in enumerate(self._entries, start=1):
            yield entry
            self.trials += entry.trial is not None
            if self._progress is not None and number % _EVERY == 0:
                self._progress(self.trials)


def _require_free(database: Database, file: Path, *, replace: bool) -> None:
    own = file_of(database.url)
    if own is not None and file.exists() and own.exists() and file.samefile(own):
        raise FormatError(f"{file} is the database itself: name another file with -o")
    if file.exists() and not replace:
        raise FormatError(f"{file} exists: name another file, or replace it with --force")
    if not file.parent.is_dir():
        raise FormatError(f"cannot write {file}: folder {file.parent} does not exist")


@contextmanager
def _appearing(file: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A stream into a file beside the one meant, which is gone again unless it was renamed."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            yield stream, partial
    except OSError as error:
        raise FormatError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _compressed(stream: BinaryIO, file: Path) -> Iterator[BinaryIO]:
    if file.suffix != ".gz":
        yield stream
        stream.flush()
        return
    # Without name and time, equal databases make equal files.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=stream, mtime=0) as packed:
        yield cast(BinaryIO, packed)
    stream.flush()
