"""`demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.request.text import LONGEST


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The report to write.")] = Path(
        "tunebench-demo.html"
    ),
    seconds: Annotated[
        float, typer.Option(min=0, max=LONGEST, metavar="SECONDS", help="How long the recorded study is shown.")
    ] = 10,
) -> None:
    """Show a recorded study of an H200 and its report, then tune one kernel on this machine.

    Nothing is kept but the report. It takes half a minute, needs no GPU, and says what runs here and what was recorded.
    """
    from tunebench.tuner.files import require_writable

    require_writable(output)
    print_line("1. A study of an NVIDIA H200, recorded and shown again: nothing runs on a GPU now")
    _recorded(output, seconds)
    print()
    print_line("2. The same on this machine, at a small size")
    _here()
    print_line(
        "next: tunebench doctor (what this machine has), tunebench tune KERNEL, tunebench new FOLDER --from FILE"
    )


def _recorded(output: Path, seconds: float) -> None:
    from rich.console import Console

    from tunebench.db.connection.database import open_database
    from tunebench.db.exchange.files import import_file
    from tunebench.db.exchange.formats import format_named
    from tunebench.db.queries.trials import best
    from tunebench.studies.display.report.gather import gather
    from tunebench.studies.display.report.page import render, write
    from tunebench.studies.display.tables import BEST
    from tunebench.studies.faces.cli.output import print_rows
    from tunebench.studies.tuning.demo import RECORDED, play, recorded_study
    from tunebench.studies.tuning.progress import StudyDisplay
    from tunebench.tuner.scratch import scratch

    with StudyDisplay(Console(stderr=True)) as display:
        play(recorded_study(), seconds, display)
    with scratch() as folder, open_database(folder / "demo.db") as database:
        import_file(database, RECORDED, format_named("jsonl"))
        print_rows(best(database), BEST, "", as_json=False, as_csv=False, verbose=False)
        write(render(gather(database)), output)
    print_line(f"wrote {output}: open it in a browser; every point is a configuration, built, proven and timed")


def _here() -> None:
    from tunebench.studies.faces.api import tune
    from tunebench.studies.tuning.summary import print_reports
    from tunebench.tuner.scratch import scratch

    with scratch() as folder:
        sizes, file = {"M": 512, "N": 512}, folder / "demo.db"
        print_reports(tune("scalar_mul", progress=True, db=file, sizes=sizes, trials=12, fresh=True, compile=False))
