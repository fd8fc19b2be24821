"""Merging databases from many machines: every result once, under the origin that it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tunebench.db.connection.database import Database, open_database
from tunebench.db.connection.engine import file_of, locate
from tunebench.db.entries.bulk import Added, add_each
from tunebench.db.entries.reader import scan
from tunebench.tuner.errors import UserError


def merge_databases(
    into: str | Path, sources: Sequence[str | Path], progress: Callable[[int], None] | None = None
) -> list[tuple[str, Added]]:
    """Add everything in some databases to another one; what is there already is not added again.

    A study keeps the origin that it began in, so that the same study tuned on two machines remains two studies, each
    with its own device and results. All of it is one transaction: where one of the databases is refused, nothing is
    added.

    Args:
        into: created where there is none.
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
        target = stack.enter_context(open_database(into))
        added = add_each(target, (scan(one) for one in opened), progress)
    return [(one.name, each) for one, each in zip(opened, added, strict=True)]


def _require_other(into: str | Path, source: str | Path) -> None:
    one, other = locate(into), locate(source)
    files = file_of(one), file_of(other)
    if one == other or (
        files[0] and files[1] and files[0].exists() and files[1].exists() and files[0].samefile(files[1])
    ):
        raise UserError(f"{source} cannot be merged into itself: name another database")
