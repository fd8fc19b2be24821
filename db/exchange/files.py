"""Entries between databases and files: export to a file, import from one."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import BinaryIO, cast

from tunebench.db.connection.database import Database
from tunebench.db.entries.bulk import Added, add_entries
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.reader import StudyFilter, matching_studies, scan
from tunebench.db.exchange.formats.base import Format, ImportOptions
from tunebench.db.exchange.reading import read_entries, stem
from tunebench.tuner.errors import UserError
from tunebench.tuner.files import whole_file

_EVERY = 1000

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Exported:
    """The counts of what was written, and the files that belong with it.

    Attributes:
        studies, trials: how many are in it.
        beside: what belongs in files beside it: contents by what their names add to its name's stem.
        files: the file asked for, then what belongs beside it; none of a stream.
    """

    studies: int
    trials: int
    beside: Mapping[str, bytes]
    files: tuple[Path, ...] = ()


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
        UserError: the format holds one study and several are meant, a package is missing, or the file exists, is no
            regular file, or cannot be written.
        FormatError: something in the studies cannot be written in this format.
    """
    with whole_file(file, replace=replace) as stream, _compressed(stream, file) as plain:
        written = export_stream(database, plain, form, which=which, progress=progress)
        companions = {file.with_name(stem(file) + suffix): content for suffix, content in written.beside.items()}
        for companion, content in companions.items():
            with whole_file(companion, replace=replace) as beside:
                beside.write(content)
    return replace_fields(written, files=(file, *companions))


def export_stream(
    database: Database,
    stream: BinaryIO,
    form: Format,
    *,
    which: StudyFilter | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write studies to a stream; see `export_file`."""
    form.require()
    studies = matching_studies(database, which or StudyFilter())
    if form.foreign and len(studies) != 1:
        some = ", ".join(str(study) for study in studies[:10]) + (", …" if len(studies) > 10 else "")
        raise UserError(f"a {form.name} file holds one study, {len(studies)} are meant: say --study (here: {some})")
    counted = Counted(scan(database, studies), progress)
    beside = form.write(counted, stream)
    return Exported(len(studies), counted.trials, beside)


def import_file(
    database: Database,
    file: Path,
    form: Format,
    *,
    options: ImportOptions | None = None,
    checking: Progress | None = None,
    progress: Progress | None = None,
) -> Added:
    """Add what a file holds to a database; nothing where anything in it is wrong.

    The file is read twice: once to the end to look for what is wrong, and once to add it, in short transactions between
    which others write. Where that is interrupted, importing again adds the rest.

    Args:
        options: what the user adds to a file of another tuner.
        checking: called now and then with the number of trials that were found to be sound.
        progress: called now and then with the number of entries added.

    Raises:
        UserError: there are options for a file that says itself what was tuned, or a package is missing.
        FormatError: the file cannot be read or is not of that format; the message is one line.
    """
    form.require()
    options = options or ImportOptions()
    if not form.foreign and not options.empty:
        raise UserError(f"a {form.name} file says itself what was tuned: leave out options such as --kernel")
    Counted(read_entries(file, form, options), checking).exhaust()
    return add_entries(database, read_entries(file, form, options), progress)


class Counted:
    """Entries on their way; their trials are counted, and progress is called now and then with the number so far."""

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

    def exhaust(self) -> None:
        """Go through all of them, which finds what is wrong."""
        for _ in self:
            pass


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
