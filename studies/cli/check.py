"""`check`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tunebench.studies.cli.options import (
    LONGEST,
    JsonOption,
    RunCompilerOption,
    RunDeviceOption,
    RunDtypeOption,
    known_compiler,
    parse_sizes,
    parse_values,
)
from tunebench.studies.cli.output import print_json


def check(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A kernel's name, a kernel folder, or a .py file with ModelNew.")
    ],
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The file with Model, get_inputs and get_init_inputs. Default: TARGET."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A kernel's tunable, in place of its default; repeatable."),
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Change a constant of the reference; repeatable.")
    ] = None,
    dtype: RunDtypeOption = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="eval or train. Default: every mode of the kernel; for a file, train as in KernelBench."),
    ] = None,
    device: RunDeviceOption = None,
    compiler: RunCompilerOption = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="sm_NN",
            help="A GPU that a kernel has to build for as well. Default: sm_90 on the CPU, where NVRTC is installed.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, max=LONGEST, help="Seconds; a check of one mode that takes longer is refused.")
    ] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Is it right? The whole correctness gate on one configuration of a kernel, or on any file's ModelNew.

    Prints each stage with what it took as it ends. Exits with 1 where a stage refuses.
    """
    from dataclasses import asdict

    from rich.console import Console

    from tunebench.studies.check import CheckRequest
    from tunebench.studies.check import check as run_check
    from tunebench.studies.terminal import printable
    from tunebench.tuner.result import Stage

    request = CheckRequest(
        target=target,
        reference=reference,
        configuration=parse_values(config or []),
        sizes=parse_sizes(size or []),
        dtype=dtype,
        modes=mode,
        device=device,
        compiler=known_compiler(compiler),
        architecture=arch,
        seconds=seconds,
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
                    **_finite(asdict(report.verdict)),
                }
                for report in reports
            ]
        )
    for report in reports:
        outcome = "passed" if report.verdict.passed else f"refused: {report.verdict.reason}"
        errors = report.verdict.errors
        figures = f" (error {errors.max_relative:.1e} of the output's size)" if errors and report.verdict.passed else ""
        console.print(printable(f"{target}, {report.mode}: {outcome}{figures}"), markup=False)
    if not all(report.verdict.passed for report in reports):
        raise typer.Exit(1)


def _finite(value: Any) -> Any:
    """The same values with null in place of infinities and NaN, which JSON does not have."""
    import math

    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
