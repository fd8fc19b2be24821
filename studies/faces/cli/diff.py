"""`diff`: what changed between two devices, versions or databases."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption, KernelArgument
from tunebench.studies.faces.cli.output import print_json

if TYPE_CHECKING:
    from tunebench.db.queries.differences import Difference, Pair

_SIDE = (
    "A database, or NAME=VALUE[,NAME=VALUE...] of device, architecture, compiler, source, driver, cuda, torch, "
    "compiler_version, tunebench, python, host."
)


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    after: Annotated[str, typer.Argument(metavar="B", help="The same for what it is compared with.")],
    kernel: KernelArgument = None,
    threshold: Annotated[
        float, typer.Option(min=0.0, max=1e9, help="Exit with 1 where B's time is more than so many times A's.")
    ] = 1.05,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the best results of A and B by kernel and problem: what flipped, and what got slower.

    Exit code 1 where something is slower than the threshold allows, 2 where A and B have nothing in common.
    """
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.differences import compared_apart, differences
    from tunebench.db.queries.selectors import parse_selector, select_best
    from tunebench.tuner.errors import UserError

    sides = parse_selector(before), parse_selector(after)
    with ExitStack() as stack:
        rows = []
        for side in sides:
            database = stack.enter_context(open_database(side.database or db, read_only=True))
            rows.append(select_best(database, side, kernel=kernel))
    found = differences(rows[0], rows[1], compared_apart(sides[0], sides[1]))
    if not found.pairs:
        ours, theirs = (f"'{side.text}' ({len(found)} best results)" for side, found in zip(sides, rows, strict=True))
        raise UserError(
            f"{ours} and {theirs} have no kernel and problem in common "
            "under otherwise equal conditions: 'tunebench best --any-source' lists what there is"
        )
    if as_json:
        print_json(_values(found, threshold))
    else:
        _print(found, threshold)
    if found.slower(threshold):
        raise typer.Exit(1)


def _values(found: Difference, threshold: float) -> dict[str, Any]:
    from tunebench.studies.display.tables import row_values

    return {
        "threshold": threshold,
        "slower": len(found.slower(threshold)),
        "flipped": sum(pair.flipped for pair in found.pairs),
        "pairs": [
            {
                "ratio": pair.ratio,
                "slower": pair.ratio > threshold,
                "flipped": pair.flipped,
                "before": row_values(pair.before),
                "after": row_values(pair.after),
            }
            for pair in found.pairs
        ],
        "only_before": [row_values(row) for row in found.only_before],
        "only_after": [row_values(row) for row in found.only_after],
    }


def _print(found: Difference, threshold: float) -> None:
    from tunebench.studies.display.tables import Columns, print_listing

    columns: Columns[Pair] = {
        "kernel": lambda pair: pair.before.kernel,
        "problem": None,
        "caches": lambda pair: str(pair.before.regime),
        "A": lambda pair: f"{pair.before.median_ms:.4g} ms",
        "B": lambda pair: f"{pair.after.median_ms:.4g} ms",
        "B over A": lambda pair: f"{pair.ratio:.3f}×",
        "": lambda pair: "slower" if pair.ratio > threshold else "",
        "configuration in B that differs from A's": _changes,
    }
    print_listing(found.pairs, columns, "Time of the best; medians from different runs", of="before")
    for side, alone in (("A", found.only_before), ("B", found.only_after)):
        for row in alone:
            print_line(f"only in {side}: {row.kernel} ({row.problem}) on {row.device_name}", error=True)


def _changes(pair: Pair) -> str:
    """The tunables whose values flipped, as `name=before→after`."""
    ours, theirs = pair.before.configuration, pair.after.configuration
    names = [name for name in dict.fromkeys((*ours, *theirs)) if ours.get(name) != theirs.get(name)]
    return " ".join(f"{name}={ours.get(name, 'none')}→{theirs.get(name, 'none')}" for name in names)
