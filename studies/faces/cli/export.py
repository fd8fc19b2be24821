"""`export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.options import NOTHING, DatabaseOption, Given
from tunebench.studies.request.completion import complete_kernel


@options_of("request.measure:ExportRequest")
def export(
    kernel: Annotated[str, typer.Argument(help="A kernel's name or folder.", autocompletion=complete_kernel)],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to; - is the output. Default: KERNEL.py, here."),
    ] = None,
    given: Given = NOTHING,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    db: DatabaseOption = None,
) -> None:
    """Write a tuned model as one file in KernelBench's form, which needs torch and nvcc alone.

    It has the CUDA source of the best configuration that is recorded or shipped for these sizes, and the reference's
    operations for all other calls.
    """
    import sys

    from tunebench.studies.display.terminal import print_line
    from tunebench.studies.request import options
    from tunebench.studies.request.measure import ExportRequest
    from tunebench.studies.writing.export_command import export as make
    from tunebench.tuner.files import require_writable, whole_file

    file = output or Path(f"{Path(kernel).name}.py")
    if str(output) != "-":
        require_writable(file, replace=force)
    made = make(options.make(ExportRequest, {**given, "kernel": kernel, "db": db}, "export"))
    if str(output) == "-":
        sys.stdout.write(made.text)
        return
    with whole_file(file, replace=force) as stream:
        stream.write(made.text.encode())
    print_line(f"written to {file}: {made.evidence}")
