"""`check`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tunebench.studies.cli import options
from tunebench.studies.cli.output import print_json
from tunebench.studies.terminal import printable
from tunebench.tuner.result import Stage

if TYPE_CHECKING:
    from tunebench.studies.checking.report import CheckReport
    from tunebench.studies.checking.request import CheckRequest
    from tunebench.tuner.gate.refusal import Question
    from tunebench.tuner.kernel import Mode


def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A kernel's name, a kernel folder, a study file, a trial's number, or a .py file with ModelNew.",
        ),
    ],
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The file with Model, get_inputs and get_init_inputs. Default: TARGET."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A kernel's tunable, in place of its default; repeatable."),
    ] = None,
    sizes: options.SizesOption = None,
    dtype: options.RunDtypeOption = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="eval or train. Default: every mode of the kernel; for a file, train as in KernelBench."),
    ] = None,
    device: options.RunDeviceOption = None,
    compiler: options.RunCompilerOption = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="sm_NN",
            help="A GPU that a kernel has to build for as well. Default: sm_90 on the CPU, where NVRTC is installed.",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(min=1, max=options.LONGEST, help="Seconds; a check of one mode that takes longer is refused."),
    ] = 600.0,
    atomics: Annotated[
        bool, typer.Option("--atomics", help="Of a file: sums come in any order, so that runs differ in last bits.")
    ] = False,
    rewrites_algebra: Annotated[
        bool,
        typer.Option(
            "--rewrites-algebra",
            help="Of a file: where the reference is not finite, the output may be so in another way.",
        ),
    ] = False,
    dense: Annotated[
        bool,
        typer.Option("--dense", help="Of a file: the output may lie in memory in any order of its axes, without gaps."),
    ] = False,
    require: Annotated[
        str | None,
        typer.Option(
            metavar="problem|drop-in",
            help="What has to hold. problem: right values at the problem's own sizes, memory, honesty. drop-in: also "
            "whatever else a caller does with the reference. Default: problem for a file, drop-in for a kernel.",
        ),
    ] = None,
    reproduce: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a script that shows the first refusal of a file with torch alone."),
    ] = None,
    db: options.DatabaseOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Is it right? The whole correctness gate on one configuration of a kernel, or on any file's ModelNew.

    Prints each stage with what it took as it ends, then two verdicts: whether the model is right for the problem, and
    whether it can take the reference's place everywhere. Exits with 1 where what is required does not hold.
    """
    from tunebench.studies.checking import PRELOADED
    from tunebench.tuner.isolation import start_forkserver

    start_forkserver(PRELOADED)  # it imports torch while this process does what comes next

    from tunebench.studies.check import check as run_check
    from tunebench.studies.checking.request import CheckRequest, Declaration
    from tunebench.tuner.errors import member_of
    from tunebench.tuner.gate.refusal import Claim

    options.require_database(db)
    given = {Declaration.ATOMICS: atomics, Declaration.REWRITES_ALGEBRA: rewrites_algebra, Declaration.DENSE: dense}
    request = CheckRequest(
        target=target,
        reference=reference,
        configuration=options.parse_values(config or []),
        sizes=options.parse_sizes(sizes or []),
        dtype=dtype,
        modes=mode,
        device=device,
        compiler=options.known_compiler(compiler),
        architecture=arch,
        seconds=seconds,
        require=None if require is None else member_of(Claim, "requirement", require),
        declared=[one for one, is_so in given.items() if is_so],
        database=db,
    )
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    reports = run_check(request, partial(_show, console))
    if as_json:
        print_json([report.values() for report in reports])
    for report in reports:
        console.print(printable(str(report)), markup=False)
    if reproduce is not None:
        _reproduce(console, reproduce, reports)
    if not all(report.passed for report in reports):
        raise typer.Exit(1)


def _show(console: Console, _request: CheckRequest, mode: Mode, what: Question | Stage) -> None:
    if isinstance(what, Stage):
        outcome = "passed " if what.passed else "REFUSED"
        line = f"{mode:5}  {outcome}  {what.name:22} {what.seconds:8.3f} s  {what.detail}"
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
