"""Shared by `db export`, `db import` and `db merge`: the option for a format, progress, and what was added."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.faces.cli.output import print_json

if TYPE_CHECKING:
    from rich.progress import Progress

    from tunebench.db.entries.bulk import Added

_LINE_EVERY = 100_000

FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="jsonl, t4, kernel-tuner, csv or parquet. Default: what the file is."),
]


def print_added(results: list[tuple[str, Added]], as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print_json([{"source": source, **asdict(added)} for source, added in results])
        return
    for source, added in results:
        also = f", {added.conflicts} of them beside other results of the same study" if added.conflicts else ""
        refused = f", {added.late_refusals} trials refused late" if added.late_refusals else ""
        print(
            f"{source}: {added.trials} trials added{also}, {added.present} already there; "
            f"{added.studies} studies and {added.comparisons} comparisons added{refused}"
        )


def _lines(deed: str) -> Callable[[int], None]:
    """Prints a line whenever another hundred thousand trials are done."""
    printed = 0

    def tell(done: int) -> None:
        nonlocal printed
        if done // _LINE_EVERY > printed:
            printed = done // _LINE_EVERY
            print(f"{deed}: {done:,} trials", file=sys.stderr)

    return tell


@contextmanager
def progress_of(*deeds: str, total: int | None = None) -> Iterator[tuple[Callable[[int], None], ...]]:
    """For each deed, one after the other, what to tell how much of it is done.

    It is a bar on standard error where that is a terminal; elsewhere a line now and then, if it takes long.
    """
    if not sys.stderr.isatty():
        yield tuple(map(_lines, deeds))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        yield tuple(_bar(display, deed, total) for deed in deeds)


def _bar(display: Progress, deed: str, total: int | None) -> Callable[[int], None]:
    """A bar that shows when something of it is done."""
    task = display.add_task(deed, total=total, visible=False)
    return lambda done: display.update(task, completed=done, visible=True)
