"""Merging databases from many machines: every result once, under the origin that it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from tunebench.db.connection.database import Database, open_database
from tunebench.db.connection.engine import file_of, locate, name_of
from tunebench.db.entries.bulk import Added, add_entries
from tunebench.db.entries.reader import scan
from tunebench.tuner.errors import UserError

_EVERY = 1000


def merge_databases(
    into: str | Path,
    sources: Sequence[str | Path],
    *,
    checking: Callable[[int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[str, Added]]:
    """Add everything in some databases to another one; what is there already is not added again.

    A study keeps the origin that it began in, so that the same study tuned on two machines remains two studies, each
    with its own device and results. The sources are read twice: where something is wrong in one of them, nothing is
    added. Then they are added in short transactions, between which others write; where that is interrupted, merging
    again adds the rest.

    Args:
        into: created where there is none.
        checking: called now and then with the number of entries that were found to be sound.
        progress: called now and then with the number of entries looked at.

    Returns:
        for each database its name, and what was added.

    Raises:
        UserError: a database would be merged into itself.
        DatabaseError: one of them cannot be used.
    """
    for source in sources:
        _require_other(into, source)
    with ExitStack() as stack:
        opened: list[Database] = [stack.enter_context(open_database(one, read_only=True)) for one in sources]
        for number, _ in enumerate(chain.from_iterable(scan(one) for one in opened), start=1):
            if checking is not None and number % _EVERY == 0:
                checking(number)
        target = stack.enter_context(open_database(into))
        added = [add_entries(target, scan(one), progress) for one in opened]
    return [(one.name, each) for one, each in zip(opened, added, strict=True)]


def _require_other(into: str | Path, source: str | Path) -> None:
    one, other = locate(into), locate(source)
    files = file_of(one), file_of(other)
    if one == other or (
        files[0] and files[1] and files[0].exists() and files[1].exists() and files[0].samefile(files[1])
    ):
        raise UserError(f"{name_of(other)} cannot be merged into itself: name another database")
