"""`trials`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.cli.options import (
    ArchitectureOption,
    CompilerOption,
    CsvOption,
    DatabaseOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    KernelOption,
    known_compiler,
    known_kernel,
    parse_moment,
    parse_tunables,
)
from tunebench.studies.cli.output import print_rows, require_one_form


def trials(
    kernel: KernelOption = None,
    status: Annotated[list[str] | None, typer.Option(help="Only trials that ended so; repeatable.")] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    architecture: ArchitectureOption = None,
    compiler: CompilerOption = None,
    sampler: Annotated[str | None, typer.Option(help="Only studies of this sampler.")] = None,
    study: Annotated[int | None, typer.Option(help="Only this study's trials.")] = None,
    tunable: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only configurations with this value; repeatable.")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Recorded then or later: ISO 8601, or UTC.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Recorded before then.")] = None,
    fastest: Annotated[
        bool, typer.Option("--fastest", help="Correct trials, fastest first; else newest first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Trials that meet every condition given. Exit code 1 where there is none."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.trials import Order
    from tunebench.db.queries.trials import trials as trial_rows
    from tunebench.studies.tables import print_trials
    from tunebench.tuner.errors import UnknownNameError
    from tunebench.tuner.result import TrialStatus

    require_one_form(as_json=as_json, as_csv=as_csv)
    for name in status or []:
        if name not in set(TrialStatus):
            raise UnknownNameError("status", name, list(TrialStatus))
    with open_database(db, read_only=True) as database:
        rows = trial_rows(
            database,
            kernel=known_kernel(kernel, database),
            status=[TrialStatus(name) for name in status] if status else None,
            device=device,
            dtype=dtype,
            architecture=architecture,
            compiler=known_compiler(compiler),
            sampler=sampler,
            study_id=study,
            tunables={name: values[0] for name, values in parse_tunables(tunable or []).items()},
            since=parse_moment("--since", since),
            until=parse_moment("--until", until),
            order=Order.FASTEST if fastest else Order.NEWEST,
            limit=limit,
        )
    print_rows(rows, print_trials, "no trial meets these conditions", as_json=as_json, as_csv=as_csv)
