"""`check`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.cli import options
from tunebench.studies.cli.output import print_json


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
    require: Annotated[
        str | None,
        typer.Option(
            metavar="problem|drop-in",
            help="What has to hold. problem: right values at the problem's own sizes, memory, honesty. drop-in: also "
            "whatever else a caller does with the reference. Default: problem for a file, drop-in for a kernel.",
        ),
    ] = None,
    db: options.DatabaseOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Is it right? The whole correctness gate on one configuration of a kernel, or on any file's ModelNew.

    Prints each stage with what it took as it ends, then two verdicts: whether the model is right for the problem, and
    whether it can take the reference's place everywhere. Exits with 1 where what is required does not hold.
    """
    from dataclasses import asdict

    from rich.console import Console

    from tunebench.studies.check import CheckRequest
    from tunebench.studies.check import check as run_check
    from tunebench.studies.terminal import printable
    from tunebench.tuner.errors import member_of
    from tunebench.tuner.gate.battery import claim_of, loss_of
    from tunebench.tuner.gate.refusal import Claim
    from tunebench.tuner.result import Stage

    options.require_database(db)
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
        database=db,
    )
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    def show(shown_mode: str, stage: Stage) -> None:
        outcome = "passed " if stage.passed else "REFUSED"
        line = f"{shown_mode:5}  {outcome}  {stage.name:22} {stage.seconds:8.3f} s  {stage.detail}"
        console.print(printable(line).rstrip(), markup=False)

    reports = run_check(request, show)
    if as_json:
        print_json(
            [
                {
                    "target": report.target,
                    "mode": report.mode,
                    "device": report.device.name,
                    "configuration": report.configuration,
                    **asdict(report.verdict),
                    "required": report.require,
                    "passed": report.passed,
                    "right_for_problem": report.holds(Claim.PROBLEM),
                    "drop_in": report.holds(Claim.DROP_IN),
                }
                for report in reports
            ]
        )
    for report in reports:
        errors, refusals = report.verdict.errors, report.refusals
        wrong = [stage for stage in refusals if claim_of(stage.name) is Claim.PROBLEM]
        figures = f" (error {errors.max_relative:.1e} of the output's size)" if errors and not wrong else ""
        right = f"NOT right for the problem: {wrong[0].detail}" if wrong else f"right for the problem{figures}"
        console.print(printable(f"{target}, {report.mode}: {right}"), markup=False)
        if not refusals:
            console.print(printable(f"{target}, {report.mode}: a drop-in for the reference"), markup=False)
        elif not wrong:
            losses = "; ".join(f"{loss_of(stage.name)} ({stage.name})" for stage in refusals)
            console.print(
                printable(f"{target}, {report.mode}: NOT a drop-in for the reference: {losses}"), markup=False
            )
    if not all(report.passed for report in reports):
        raise typer.Exit(1)
