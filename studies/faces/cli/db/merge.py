"""`db merge`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.faces.cli.db.transfer import print_added, progress_of
from tunebench.studies.faces.cli.options import JsonOption


def merge(
    into: Annotated[str, typer.Argument(metavar="INTO", help="The database to add to; made if it is not there.")],
    sources: Annotated[list[str], typer.Argument(metavar="FROM...", help="Databases to add; they are only read.")],
    as_json: JsonOption = False,
) -> None:
    """Add everything in some databases to another one, each result once. If one of them cannot be read, nothing is."""
    from tunebench.db.exchange.merge import merge_databases

    with progress_of("checking", "merging") as (checking, progress):
        results = merge_databases(into, sources, checking=checking, progress=progress)
    print_added(results, as_json)
