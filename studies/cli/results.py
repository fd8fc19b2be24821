"""Questions to the results database: `best`, `trials`, `show` and `query`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunebench.studies.cli.options import (
    CsvOption,
    DatabaseOption,
    JsonOption,
    known_kernel,
    output_width,
    parse_moment,
    parse_tunables,
    print_csv,
    print_json,
    require_one_form,
)

if TYPE_CHECKING:
    from rich.console import Console

    from tunebench.tuner.compile.base import CompilerName

KernelOption = Annotated[str | None, typer.Option("--kernel", help="Only this kernel.")]
DeviceOption = Annotated[str | None, typer.Option(help="Only the device of this name.")]
DtypeOption = Annotated[str | None, typer.Option(help="Only problems of this dtype, such as float32.")]
ArchitectureOption = Annotated[str | None, typer.Option(help="Only devices of this architecture, such as sm_90.")]
CompilerOption = Annotated[str | None, typer.Option(help="Only results of this compiler: nvrtc, inline or cpu.")]


def best(
    kernel: Annotated[str | None, typer.Argument(help="Only this kernel.")] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    architecture: ArchitectureOption = None,
    compiler: CompilerOption = None,
    any_source: Annotated[
        bool, typer.Option("--any-source", help="Also results of other versions of the kernel's source.")
    ] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """The best configuration of each kernel, problem and device. Exit code 1 where there is none."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.trials import best as best_rows
    from tunebench.studies.tables import print_best

    require_one_form(as_json=as_json, as_csv=as_csv)
    with open_database(db, read_only=True) as database:
        digests = _current_digests()
        found = best_rows(
            database,
            kernel=known_kernel(kernel, database),
            device=device,
            dtype=dtype,
            architecture=architecture,
            compiler=_known_compiler(compiler),
        )
    rows = [row for row in found if any_source or digests.get(row.kernel, row.source_digest) == row.source_digest]
    _print_rows(rows, print_best, "no result that meets these conditions", as_json=as_json, as_csv=as_csv)


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
            compiler=_known_compiler(compiler),
            sampler=sampler,
            study_id=study,
            tunables={name: values[0] for name, values in parse_tunables(tunable or []).items()},
            since=parse_moment("--since", since),
            until=parse_moment("--until", until),
            order=Order.FASTEST if fastest else Order.NEWEST,
            limit=limit,
        )
    _print_rows(rows, print_trials, "no trial meets these conditions", as_json=as_json, as_csv=as_csv)


def _print_rows(
    rows: Sequence[Any], print_table: Callable[[Console, Any], None], nothing: str, *, as_json: bool, as_csv: bool
) -> None:
    """Print rows in the form asked for; exit code 1 where there are none."""
    from rich.console import Console

    from tunebench.db.queries.data_frames import FLAT_COLUMNS, csv_text, flat_values
    from tunebench.studies.tables import row_values

    if as_json:
        print_json([row_values(row) for row in rows])
    elif as_csv:
        print_csv(FLAT_COLUMNS, ([csv_text(value) for value in flat_values(row).values()] for row in rows))
    elif rows:
        print_table(Console(width=output_width()), rows)
    else:
        print(nothing, file=sys.stderr)
    if not rows:
        raise typer.Exit(1)


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT; - reads it from standard input.")],
    limit: Annotated[int, typer.Option(min=1, help="At most this many rows.")] = 1000,
    seconds: Annotated[float, typer.Option(help="Stop the query after so long.")] = 60.0,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Ask in SQL. It can only read; the views `best`, `trials_flat` and `leaderboard` join all tables."""
    from rich.console import Console

    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.data_frames import csv_text
    from tunebench.db.queries.sql import ask
    from tunebench.studies.tables import print_table

    require_one_form(as_json=as_json, as_csv=as_csv)
    with open_database(db, read_only=True) as database:
        answer = ask(database, sys.stdin.read() if sql == "-" else sql, limit=limit, seconds=seconds)
    if as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    elif as_csv:
        print_csv(answer.columns, ([csv_text(cell) for cell in row] for row in answer.rows))
    else:
        rows = [[csv_text(cell) for cell in row] for row in answer.rows]
        print_table(Console(width=output_width()), answer.columns, rows)
    if not answer.complete:
        print(f"only the first {limit} rows: ask for less, or for more with --limit", file=sys.stderr)


def show(
    trial: Annotated[
        int, typer.Argument(metavar="TRIAL", help="The trial's number, as `trials` and `--json` have it.")
    ],
    source: Annotated[
        bool, typer.Option("--source", help="The source too, where this tunebench ships the one that ran.")
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="The compiler's full output too; --json always has it.")] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Everything about one trial: what ran where, its build, verdict, samples, and the comparisons it won."""
    from rich.console import Console

    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.one_trial import trial_details
    from tunebench.studies.trial_page import current_source, detail_values, print_details

    with open_database(db, read_only=True) as database:
        details = trial_details(database, trial)
    text = current_source(details) if source else None
    if as_json:
        print_json(detail_values(details, source=text))
    else:
        print_details(Console(width=output_width()), details, log=log, source=text)


def _known_compiler(name: str | None) -> CompilerName | None:
    """The compiler of that name.

    Raises:
        UnknownNameError: there is none.
    """
    from tunebench.tuner.compile.base import CompilerName
    from tunebench.tuner.errors import UnknownNameError

    if name is not None and name not in set(CompilerName):
        raise UnknownNameError("compiler", name, list(CompilerName))
    return CompilerName(name) if name else None


def _current_digests() -> dict[str, str]:
    """The source digests of the shipped kernels as they are now."""
    from tunebench.kernels.runtime.registry import kernel_names, load_model

    return {name: load_model(name).kernel.digest for name in kernel_names()}
