"""`regress`: did a commit make a kernel slower?"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json


@options_of("tuning.study_file:RegressRequest")
def regress(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The git revision to compare with, such as origin/main.")],
    head: Annotated[
        str | None, typer.Argument(metavar="[HEAD]", help="A git revision. Default: the working tree as it is.")
    ] = None,
    markdown: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the table in Markdown, for a pull request; - prints it.")
    ] = None,
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Did a commit make a kernel slower? Every kernel that differs between two git revisions, timed in the same rounds.

    Both revisions are built and checked by the gate's quick battery, then timed in interleaved rounds with a second
    copy of BASE. Exit code 1 where HEAD is slower by more than the threshold over the whole 99 % interval, or is wrong.
    """
    options.require_database(db)

    from tunebench.tuner.fork_server import start_forkserver

    start_forkserver(["tunebench.studies.checking.regress.comparison"])  # it imports torch while this process does

    from tunebench.studies.checking.regress.report import markdown as as_markdown
    from tunebench.studies.checking.regress.report import print_report, report_values
    from tunebench.studies.checking.regress.run import regress as compare_revisions
    from tunebench.tuner.errors import UserError
    from tunebench.tuner.files import whole_file

    if as_json and markdown == "-":
        raise UserError("--json and --markdown - are two forms of the same output: name a file for one of them")
    named = markdown not in (None, "-")
    # Opened first: that it cannot be written is said before anything is timed.
    with whole_file(Path(str(markdown))) if named else nullcontext() as file:
        report = compare_revisions(base, head, db=db, show=_say, **given)
        if file is not None:
            file.write(as_markdown(report).encode())
    if as_json:
        print_json(report_values(report))
    elif markdown == "-":
        print(as_markdown(report), end="")
    else:
        print_report(report)
    if not report.passed:
        raise typer.Exit(1)


def _say(text: str) -> None:
    print_line(f"tunebench: {text}", error=True)
