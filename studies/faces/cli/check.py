"""`check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.status import Status

from tunebench.studies.display.terminal import print_table, printable
from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json, print_json_array
from tunebench.tuner.result import NOT_ASKED, Stage

if TYPE_CHECKING:
    from tunebench.studies.checking.report import CheckReport
    from tunebench.studies.checking.request import CheckRequest
    from tunebench.tuner.gate.refusal import Question
    from tunebench.tuner.kernel import Mode

_COLUMNS = ("file", "mode", "problem", "drop-in", "first refusal", "seconds")


@options_of("checking.request:CheckRequest")
def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...",
            help="A kernel's name, a kernel folder, a study file, a trial's number, a .py file with ModelNew, or a "
            "folder of such files, such as KernelBench's run directories.",
        ),
    ],
    given: options.Given = options.NOTHING,
    reproduce: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a script that shows the first refusal of a file with torch alone."),
    ] = None,
    db: options.DatabaseOption = None,
    verbose: options.VerboseOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Is it right? The whole correctness gate on one configuration of a kernel, or on any file's ModelNew.

    Prints what is refused as it ends, with -v every stage, then two verdicts: whether the model is right
    for the problem, and whether it can take the reference's place everywhere. Of many files, prints a line as each
    ends, and a table.
    Exits with 1 where what is required does not hold; after Ctrl-C, what was done is printed.
    """
    from tunebench.studies.checking.request import CheckRequest
    from tunebench.studies.checking.submissions import is_run_folder, is_submission, requests_for
    from tunebench.studies.request.options import make
    from tunebench.tuner.errors import UserError
    from tunebench.tuner.files import require_writable

    options.require_database(db)
    request = make(CheckRequest, {"target": targets[0], **given, "database": db}, "check")
    for option, value in (("--problems", request.problems), ("--reproduce", reproduce)):
        if value is not None and not any(is_submission(one) or is_run_folder(one) for one in targets):
            raise UserError(f"{option} is for files with a ModelNew: {targets[0]} is none")
    if reproduce is not None:
        require_writable(reproduce)
    requests = requests_for(targets, request)
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    if len(targets) == 1 and not is_run_folder(targets[0]):
        passed = _check_one(console, requests[0], reproduce, as_json=as_json, verbose=verbose)
    elif reproduce is not None:
        raise UserError("--reproduce writes one script: name one file")
    else:
        passed = _check_many(console, requests, request.jobs, as_json=as_json)
    if not passed:
        raise typer.Exit(1)


def _check_one(
    console: Console, request: CheckRequest, reproduce: Path | None, *, as_json: bool, verbose: bool
) -> bool:
    from tunebench.studies.checking.check import check as run_check

    with console.status("") as status:
        reports = run_check(request, partial(_show, console, status, verbose))
    if as_json:
        print_json([report.values() for report in reports])
    for report in reports:
        passed = sum(stage.passed and stage.asked for stage in report.stages)
        asked = sum(stage.asked for stage in report.stages)
        console.print(f"{report.mode}: {passed} of {asked} stages passed in {report.seconds:.1f} s")
        console.print(printable(str(report)), markup=False)
    if reproduce is not None:
        _reproduce(console, reproduce, reports)
    return all(report.passed for report in reports)


def _check_many(console: Console, requests: Sequence[CheckRequest], jobs: int, *, as_json: bool) -> bool:
    """Print each report as it comes, and all of them as a table, also where Ctrl-C ends it."""
    reports: list[CheckReport] = []
    interrupted = False

    def coming() -> Iterator[CheckReport]:
        from tunebench.studies.checking.check import check_all

        nonlocal interrupted
        with console.status("") as status:

            def show(request: CheckRequest, _mode: Mode, what: Question | Stage) -> None:
                if not isinstance(what, Stage):
                    status.update(printable(f"{len(reports)} judged; {Path(request.target).name}: {what}"))

            try:
                for report in check_all(requests, jobs, show):
                    reports.append(report)
                    # A kernel has a report for each of its modes.
                    targets = len({one.target for one in reports})
                    console.print(printable(f"{targets}/{len(requests)}  {report.line}"), markup=False)
                    yield report
            except KeyboardInterrupt:
                interrupted = True

    if as_json:
        print_json_array(report.values() for report in coming())
    else:
        for _ in coming():
            pass
        print_table(_COLUMNS, [report.row for report in sorted(reports, key=attrgetter("target", "mode"))])
    if interrupted:
        raise KeyboardInterrupt
    return all(report.passed for report in reports)


def _show(
    console: Console, status: Status, verbose: bool, _request: CheckRequest, mode: Mode, what: Question | Stage
) -> None:
    if not isinstance(what, Stage):
        status.update(printable(f"{mode}  {what}"))
    elif verbose or not what.passed:
        outcome = "REFUSED" if not what.passed else "passed" if what.asked else "not asked"
        line = (
            f"{mode:5}  {outcome:9}  {what.name:22} {what.seconds:8.3f} s  {what.detail.removeprefix(f'{NOT_ASKED}: ')}"
        )
        console.print(printable(line).rstrip(), markup=False)


def _reproduce(console: Console, file: Path, reports: Sequence[CheckReport]) -> None:
    """Write the script of the first refusal that has one, or say why there is none: the verdict stays what it is."""
    from tunebench.studies.checking.script import write_script
    from tunebench.tuner.errors import UserError

    refused = next((report for report in reports if report.refusals), reports[0])
    try:
        refusal = write_script(file, refused)
    except UserError as error:
        line = str(error)
    else:
        line = f"{file}: shows what was refused in stage '{refusal.name}'; run it with python"
    console.print(printable(line), markup=False)
