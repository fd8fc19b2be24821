"""Merging databases from many machines: every result once, under the origin that it came from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from tunebench.db.connection.database import Database, open_database
from tunebench.db.connection.engine import file_of, locate, name_of
from tunebench.db.entries.bulk import Added, add_entries
from tunebench.db.entries.reader import scan
from tunebench.db.exchange.files import Counted, Progress
from tunebench.tuner.errors import UserError


def merge_databases(
    into: str | Path,
    sources: Sequence[str | Path],
    *,
    checking: Progress | None = None,
    progress: Progress | None = None,
) -> list[tuple[str, Added]]:
    """Add everything in some databases to another one; what is there already is not added again.

    A study keeps the origin that it began in, so that the same study tuned on two machines remains two studies, each
    with its own device and results. The sources are read twice: where something is wrong in one of them, nothing is
    added. Then they are added in short transactions, between which others write; where that is interrupted, merging
    again adds the rest.

    Args:
        into: created where there is none.
        checking: called now and then with the number of trials that were found to be sound.
        progress: called now and then with the number of entries looked at.

    Returns:
        for each database its name, and what was added.

    Raises:
        UserError: a database would be merged into itself.
    """
    for source in sources:
        _require_other(into, source)
    with ExitStack() as stack:
        opened: list[Database] = [stack.enter_context(open_database(one, read_only=True)) for one in sources]
        Counted(chain.from_iterable(scan(one) for one in opened), checking).exhaust()
        target = stack.enter_context(open_database(into))
        added = [add_entries(target, scan(one), progress) for one in opened]
    return [(one.name, each) for one, each in zip(opened, added, strict=True)]


def _require_other(into: str | Path, source: str | Path) -> None:
    one, other = locate(into), locate(source)
    file, own = file_of(one), file_of(other)
    if one == other or (file and own and file.exists() and own.exists() and file.samefile(own)):
        raise UserError(f"{name_of(other)} cannot be merged into itself: name another database")
