"""The `tunebench` command. Heavy imports wait until a command needs them, so that `--help` answers at once."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from tunebench import __version__

app = typer.Typer(
    name="tunebench",
    help="An autotuning workbench for CUDA kernels in PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

DatabaseOption = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="Results database: a file, or a SQLAlchemy URL. Default: $TUNEBENCH_DB."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
KernelOption = Annotated[str | None, typer.Option("--kernel", help="Only this kernel.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tunebench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command()
def tune(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET...", help="A kernel's name, a study file (.toml), or a kernel folder."),
    ],
    device: Annotated[str | None, typer.Option(help="cuda, cuda:INDEX or cpu. Default: a GPU if there is one.")] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials of each study, earlier runs included. Default: 100.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Time limit of each study in this run.")] = None,
    sampler: Annotated[str | None, typer.Option(help="gp, tpe, random or exhaustive. Default: gp.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the search. Default: 0.")] = None,
    compiler: Annotated[str | None, typer.Option(help="nvrtc, inline or cpu. Default: by device.")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="eval or train. Default: every mode of the kernel.")] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Change a constant of reference.py; repeatable.")
    ] = None,
    tunable: Annotated[
        list[str] | None, typer.Option(metavar="NAME=V1,V2,...", help="Restrict a tunable's values; repeatable.")
    ] = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a tuning study, or go on with it: the same command resumes where it ended.

    Every configuration is built, checked against the reference in float64 and timed; the best are timed again,
    interleaved with the reference and the default. Ctrl-C ends a study with everything recorded.
    """
    from rich.console import Console

    from tunebench.db.store import open_database
    from tunebench.studies.progress import StudyDisplay
    from tunebench.studies.tables import print_reports, report_values
    from tunebench.studies.tune import request_of, resolve
    from tunebench.studies.tune import tune as run_studies
    from tunebench.tuner.study import Ending

    options: dict[str, object] = {
        "device": device,
        "trials": trials,
        "seconds": seconds,
        "sampler": sampler,
        "seed": seed,
        "compiler": compiler,
        "modes": mode,
        "sizes": _sizes(size or []),
        "tunables": _tunables(tunable or []),
    }
    given = {key: value for key, value in options.items() if value not in (None, {}, [])}
    studies = [resolve(request_of(target, given)) for target in targets]
    reports = []
    with open_database(db) as database, StudyDisplay(Console(stderr=True)) as display:
        for study in studies:
            reports += run_studies(study, database, display)
            if reports[-1].outcome.ending is Ending.INTERRUPTED:
                break
    if as_json:
        _print_json([report_values(report) for report in reports])
    else:
        print_reports(Console(width=_width()), reports)
    if any(report.outcome.ending is Ending.INTERRUPTED for report in reports):
        raise typer.Exit(130)
    if any(report.outcome.best is None for report in reports):
        raise typer.Exit(1)


@app.command()
def best(
    kernel: Annotated[str | None, typer.Argument(help="Only this kernel.")] = None,
    device: Annotated[str | None, typer.Option(help="Only the device of this name.")] = None,
    any_source: Annotated[
        bool, typer.Option("--any-source", help="Also results of other versions of the kernel's source.")
    ] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """The best configuration of each kernel, problem and device. Exit code 1 where there is none."""
    from rich.console import Console

    from tunebench.db.query import best as best_rows
    from tunebench.db.store import open_database
    from tunebench.studies.tables import print_best, row_values

    with open_database(db, read_only=True) as database:
        digests = _current_digests()
        rows = [
            row
            for row in best_rows(database, kernel=_known_kernel(kernel, database), device=device)
            if any_source or digests.get(row.kernel, row.source_digest) == row.source_digest
        ]
    if as_json:
        _print_json([row_values(row) for row in rows])
    elif rows:
        print_best(Console(width=_width()), rows)
    else:
        print("no result that meets these conditions", file=sys.stderr)
    if not rows:
        raise typer.Exit(1)


@app.command()
def trials(
    kernel: KernelOption = None,
    status: Annotated[list[str] | None, typer.Option(help="Only trials that ended so; repeatable.")] = None,
    device: Annotated[str | None, typer.Option(help="Only the device of this name.")] = None,
    study: Annotated[int | None, typer.Option(help="Only this study's trials.")] = None,
    tunable: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only configurations with this value; repeatable.")
    ] = None,
    fastest: Annotated[
        bool, typer.Option("--fastest", help="Correct trials, fastest first; else newest first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Trials that meet every condition given. Exit code 1 where there is none."""
    from rich.console import Console

    from tunebench.db.query import Order
    from tunebench.db.query import trials as trial_rows
    from tunebench.db.store import open_database
    from tunebench.studies.tables import print_trials, row_values
    from tunebench.tuner.errors import UnknownNameError
    from tunebench.tuner.result import TrialStatus

    for name in status or []:
        if name not in set(TrialStatus):
            raise UnknownNameError("status", name, list(TrialStatus))
    with open_database(db, read_only=True) as database:
        rows = trial_rows(
            database,
            kernel=_known_kernel(kernel, database),
            status=[TrialStatus(name) for name in status] if status else None,
            device=device,
            study_id=study,
            tunables={name: values[0] for name, values in _tunables(tunable or []).items()},
            order=Order.FASTEST if fastest else Order.NEWEST,
            limit=limit,
        )
    if as_json:
        _print_json([row_values(row) for row in rows])
    elif rows:
        print_trials(Console(width=_width()), rows)
    else:
        print("no trial meets these conditions", file=sys.stderr)
    if not rows:
        raise typer.Exit(1)


@app.command()
def doctor(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """What is on this machine: GPU, driver, compilers, database, and what will run where. Changes nothing."""
    from dataclasses import asdict

    from rich.console import Console

    from tunebench.studies.doctor import examine
    from tunebench.studies.tables import print_table

    findings = examine(db)
    if as_json:
        _print_json([asdict(finding) for finding in findings])
        return
    rows = [
        ("yes" if finding.works else "no", finding.subject, "\n".join(filter(None, (finding.detail, finding.remedy))))
        for finding in findings
    ]
    print_table(Console(width=_width()), ("works", "what", "detail"), rows)


def _known_kernel(name: str | None, database: Any) -> str | None:
    """A kernel's name, if it ships or has results here.

    Raises:
        UnknownNameError: neither; the message has the nearest names.
    """
    from tunebench.db.query import kernels_with_results
    from tunebench.kernels.registry import kernel_names
    from tunebench.tuner.errors import UnknownNameError

    known = {*kernel_names(), *kernels_with_results(database)}
    if name is not None and name not in known:
        raise UnknownNameError("kernel", name, known)
    return name


def _current_digests() -> dict[str, str]:
    """The source digests of the shipped kernels as they are now."""
    from tunebench.kernels.registry import kernel_names, load_model

    return {name: load_model(name).kernel.digest for name in kernel_names()}


def _pairs(options: list[str], form: str) -> dict[str, str]:
    from tunebench.tuner.errors import UserError

    pairs = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not (separator and name and value):
            raise UserError(f"'{option}' is not of the form {form}")
        pairs[name] = value
    return pairs


def _sizes(options: list[str]) -> dict[str, object]:
    return {name: _value(text) for name, text in _pairs(options, "NAME=NUMBER").items()}


def _tunables(options: list[str]) -> dict[str, list[Any]]:
    pairs = _pairs(options, "NAME=VALUE or NAME=V1,V2,...")
    return {name: [_value(part) for part in text.split(",")] for name, text in pairs.items()}


def _value(text: str) -> bool | int | float | str:
    """What a value on the command line means: true, false, a number, else text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _print_json(values: object) -> None:
    print(json.dumps(values, indent=2, ensure_ascii=False))


def _width() -> int | None:
    """The terminal's width; wide where the output is no terminal, so that rows stay on one line."""
    return None if sys.stdout.isatty() else 240
