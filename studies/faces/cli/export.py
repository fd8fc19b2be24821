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
        typer.Option(
            "-o",
            "--output",
            metavar="PLACE",
            help="A file, or a project's folder; - is the output. Default: KERNEL.py, or KERNEL-hf-kernels, here.",
        ),
    ] = None,
    given: Given = NOTHING,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    db: DatabaseOption = None,
) -> None:
    """Write a tuned model as one file in KernelBench's form, or as a project of Hugging Face's kernel-builder.

    The file needs torch and nvcc alone. It has the CUDA source of the best configuration that is recorded or shipped
    for these sizes, and the reference's operations for all other calls.
    """
    import sys

    from tunebench.studies.display.terminal import print_line
    from tunebench.studies.request import options
    from tunebench.studies.request.measure import ExportForm, ExportRequest
    from tunebench.studies.writing.export_command import export as make
    from tunebench.studies.writing.export_command import require_place

    request = options.make(ExportRequest, {**given, "kernel": kernel, "db": db}, "export")
    if str(output) == "-":
        sys.stdout.write(make(request).text)
        return
    ending = ".py" if request.form is ExportForm.FILE else f"-{request.form}"
    place = output or Path(f"{Path(kernel).name}{ending}")
    require_place(request.form, place, replace=force)
    made = make(request)
    made.write(place, replace=force)
    print_line(f"written to {place}: {made.evidence}")
