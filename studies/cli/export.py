"""`export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.cli.completion import complete_kernel
from tunebench.studies.cli.options import LARGEST, DatabaseOption, parse_sizes


def export(
    kernel: Annotated[str, typer.Argument(help="A kernel's name or folder.", autocompletion=complete_kernel)],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to; - is the output. Default: KERNEL.py, here."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="A constant of the reference; repeatable. Default: KernelBench's."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="Default: the reference's own.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="eval or train. Default: train, where that makes a difference.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Results of this device. Default: this machine's, else any.")
    ] = None,
    trial: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="This trial of the database. Default: the best result.")
    ] = None,
    any_source: Annotated[
        bool, typer.Option("--any-source", help="Also results of other versions of the kernel's source. Default: not.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    db: DatabaseOption = None,
) -> None:
    """Write a tuned model as one file in KernelBench's form, which needs torch and nvcc alone.

    It has the CUDA source of the best configuration that is recorded or shipped for these sizes, and the reference's
    operations for all other calls.
    """
    import sys

    from tunebench.studies.export_command import ExportRequest
    from tunebench.studies.export_command import export as make
    from tunebench.studies.terminal import print_line
    from tunebench.tuner.files import require_writable, whole_file

    file = output or Path(f"{Path(kernel).name}.py")
    if str(output) != "-":
        require_writable(file, replace=force)
    made = make(ExportRequest(kernel, parse_sizes(size or []), dtype, mode, device, trial, any_source, db))
    if str(output) == "-":
        sys.stdout.write(made.text)
        return
    with whole_file(file, replace=force) as stream:
        stream.write(made.text.encode())
    print_line(f"written to {file}: {made.evidence}")
