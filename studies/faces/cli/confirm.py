"""`confirm`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.tune import run_and_print
from tunebench.studies.request.text import MOST


@options_of("tuning.study_file:StudyRequest", "compile")
def confirm(
    study: Annotated[int, typer.Argument(min=1, max=MOST, metavar="STUDY", help="The study's number.")],
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    verbose: options.VerboseOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Ask what a study had no time for: all final rounds, compute-sanitizer on the winner, and its last check.

    Nothing more is searched. A study of 'tune --seconds' says what it has not asked.
    """
    from tunebench.studies.tuning import PRELOAD
    from tunebench.tuner.fork_server import start_forkserver

    start_forkserver(PRELOAD)  # it imports torch while this process does

    from rich.console import Console

    from tunebench.studies.tuning.progress import StudyDisplay
    from tunebench.studies.tuning.targets import resolve_study

    display = StudyDisplay(Console(stderr=True))
    display.starting([f"study {study}"])
    run_and_print([resolve_study(study, given, db)], display, db, verbose=verbose, as_json=as_json)
