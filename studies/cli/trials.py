"""`trials`."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import Annotated

import typer

from tunebench.studies.cli import options
from tunebench.studies.cli.completion import complete_sampler, complete_status
from tunebench.studies.cli.output import print_rows, require_one_form

_ROWS = 50
"""Rows of a table for people, where nothing else is said."""


def trials(
    kernel: options.KernelArgument = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help="Only trials that ended so: correct, pruned, constraints, compile, runtime, correctness or timeout; "
            "repeatable. Default: all.",
            autocompletion=complete_status,
        ),
    ] = None,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = None,
    accuracy: options.OnlyAccuracyOption = None,
    architecture: options.ArchitectureOption = None,
    compiler: options.CompilerOption = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only studies of this sampler. Default: every sampler.",
            autocompletion=complete_sampler,
        ),
    ] = None,
    study: Annotated[
        int | None, typer.Option(min=1, max=options.LARGEST, help="Only this study's trials. Default: every study.")
    ] = None,
    tunable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V1,V2,...",
            help="Only configurations with one of these values; repeatable for other tunables. Default: all.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Recorded then or later: ISO 8601, UTC where no zone is named. Default: all."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Recorded before then: as for --since. Default: all.")
    ] = None,
    fastest: Annotated[
        bool, typer.Option("--fastest", help="List correct trials, the fastest first. Default: all, the newest first.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=options.LARGEST,
            help=f"At most this many trials. Default: {_ROWS} in a table, all with --json or --csv.",
        ),
    ] = None,
    db: options.DatabaseOption = None,
    as_json: options.JsonOption = False,
    as_csv: options.CsvOption = False,
) -> None:
    """List the trials that meet every condition given. Exit code 1 where there is none."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.trials import Order, each_trial
    from tunebench.studies.tables import TRIALS
    from tunebench.studies.terminal import print_line
    from tunebench.tuner.errors import member_of
    from tunebench.tuner.result import TrialStatus

    require_one_form(as_json=as_json, as_csv=as_csv)
    statuses = [member_of(TrialStatus, "status", name) for name in status or []]
    moments = {"since": options.parse_moment("--since", since), "until": options.parse_moment("--until", until)}
    with open_database(db, read_only=True) as database:
        rows = each_trial(
            database,
            kernel=options.known_kernel(kernel, database),
            status=statuses or None,
            device=device,
            dtype=dtype,
            accuracy=options.known_accuracy(accuracy),
            architecture=architecture,
            compiler=options.known_compiler(compiler),
            sampler=sampler,
            study_id=study,
            tunables=options.parse_tunables(tunable or []),
            since=moments["since"],
            until=moments["until"],
            order=Order.FASTEST if fastest else Order.NEWEST,
            limit=limit,
        )
        whole = as_json or as_csv or limit is not None
        with closing(rows):
            shown = rows if whole else islice(rows, _ROWS)
            print_rows(shown, TRIALS, "no trial meets these conditions", as_json=as_json, as_csv=as_csv)
            if not whole and next(rows, None) is not None:
                print_line(f"only the first {_ROWS}: name conditions, or ask for more with --limit", error=True)
