"""`tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json
from tunebench.studies.request.completion import complete_kernel
from tunebench.studies.request.text import MOST

if TYPE_CHECKING:
    from tunebench.studies.tuning.progress import StudyDisplay
    from tunebench.studies.tuning.resolved import Resolved
    from tunebench.studies.tuning.tune import StudyReport

_MOST_MISSES = 10


@options_of("tuning.study_file:StudyRequest")
def tune(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="A kernel's name, a study file (.toml), a kernel folder, or a trial's number: its study goes on, or "
            "without --trials takes its final rounds again.",
            autocompletion=complete_kernel,
        ),
    ] = None,
    from_misses: Annotated[
        bool,
        typer.Option(
            "--from-misses",
            help="Tune what was served without evidence on this device, the most used first (see 'tunebench misses').",
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST,
            metavar="N",
            help="With --from-misses: so many studies at most (10).",
        ),
    ] = None,
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    verbose: options.VerboseOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run a tuning study, or go on with it: the same command resumes where it ended.

    Every configuration is built, checked against the reference in float64 and timed; the best are timed again,
    interleaved with the reference and the default. Ctrl-C ends a study with everything recorded.
    """
    from tunebench.studies.tuning import PRELOAD
    from tunebench.tuner.fork_server import start_forkserver

    start_forkserver(PRELOAD)  # it imports torch while this process does

    from rich.console import Console

    from tunebench.studies.tuning.progress import StudyDisplay

    display = StudyDisplay(Console(stderr=True))
    display.starting(targets or ["misses"])

    from tunebench.studies.tuning.resolved import resolve
    from tunebench.studies.tuning.study_file import request_of
    from tunebench.tuner.errors import UserError

    if limit is not None and not from_misses:
        raise UserError("--limit says how many of the misses to tune: give --from-misses too, or leave it out")
    if from_misses:
        studies = _of_misses(targets or [], given, limit or _MOST_MISSES, db)
    elif targets:
        studies = [
            _of_trial(int(target), given, db)
            if target.isascii() and target.isdigit()
            else resolve(request_of(target, given))
            for target in targets
        ]
    else:
        raise UserError("nothing to tune: name a kernel, a study file or a folder, or give --from-misses")
    run_and_print(studies, display, db, verbose=verbose, as_json=as_json, passes_over=from_misses)


def _of_trial(number: int, given: Mapping[str, object], db: str | None) -> Resolved:
    from tunebench.studies.tuning.targets import resolve_trial  # opens databases

    return resolve_trial(number, given, db)


def run_and_print(
    studies: Sequence[Resolved],
    display: StudyDisplay,
    db: str | None,
    *,
    verbose: bool,
    as_json: bool,
    passes_over: bool = False,
) -> None:
    """Run studies and print what came of them.

    Args:
        passes_over: a study whose problem cannot be tuned is told and passed over.

    Raises:
        typer.Exit: one was interrupted, or has no right configuration.
    """
    from tunebench.studies.tuning.executors import executor_ahead

    ahead = executor_ahead(studies[0]) if studies else None

    from tunebench.db.connection.database import open_database
    from tunebench.studies.tuning.summary import print_reports, report_values
    from tunebench.studies.tuning.tune import tune as run_studies
    from tunebench.tuner.errors import UserError
    from tunebench.tuner.study.account import seconds_of_process
    from tunebench.tuner.study.outcome import Ending

    reports: list[StudyReport] = []
    with open_database(db) as database, display:
        for study in studies:
            try:
                is_first = study is studies[0]
                before = 0.0 if reports else seconds_of_process()
                reports += run_studies(study, database, display, before, ahead if is_first else None)
            except UserError as error:
                if not passes_over:
                    raise
                _say(str(error))
            if reports and reports[-1].outcome.ending is Ending.INTERRUPTED:
                break
    if as_json:
        print_json([report_values(report) for report in reports])
    else:
        print_reports(reports, verbose=verbose)
    if any(report.outcome.ending is Ending.INTERRUPTED for report in reports):
        raise typer.Exit(130)
    if not reports or any(report.outcome.best is None for report in reports):
        raise typer.Exit(1)


def _of_misses(kernels: list[str], given: Mapping[str, object], limit: int, db: str | None) -> list[Resolved]:
    """The studies of what is used most without evidence.

    Raises:
        UserError: an option says what the problems themselves say.
    """
    from tunebench.db.connection.database import open_database
    from tunebench.studies.tuning.for_problem import resolve_misses
    from tunebench.tuner.errors import UserError

    if said := sorted({"sizes", "modes", "dtype", "settings"} & given.keys()):
        raise UserError(f"--from-misses takes {', '.join(said)} from the problems that were missed: leave them out")
    with open_database(db, read_only=True) as database:
        studies = resolve_misses(database, kernels, given, limit, _say)
    if not studies:
        _say("no problem to tune was served without evidence on this device: see 'tunebench misses'")
    return studies


def _say(text: str) -> None:
    print_line(f"tunebench: {text}", error=True)
