"""`new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.request.completion import among


def new(
    folder: Annotated[
        Path, typer.Argument(metavar="NAME", help="The folder to write; its name is the kernel's.", show_default=False)
    ],
    problem: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A problem in KernelBench's form. Default: a sample of the block."),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option(
            metavar="BLOCK",
            help="pointwise, rows, linear or conv. Default: what the problem's layers and operations propose.",
            autocompletion=among(("pointwise", "rows", "linear", "conv")),
        ),
    ] = None,
) -> None:
    """Write the folder of a new kernel, which agrees with its problem and which tune takes.

    reference.py is the problem as it is, model.py a kernel made of a block, with a device function for the operations
    that it knows. What it does not know stays torch's own, around the kernel, and is marked as TODO. Before it is
    written it runs beside the reference on the CPU, in eval and in train mode. Where no block makes a kernel that could
    be faster, model.py and NAME.cu are to be written by hand, and a line says why.
    """
    from tunebench.tuner.isolation import TRACER, start_forkserver

    start_forkserver(["tunebench.studies.writing.new.new_kernel", TRACER])  # it imports torch while this process does

    from tunebench.studies.display.terminal import print_line
    from tunebench.studies.writing.new.new_kernel import write_new
    from tunebench.studies.writing.new.telling import lines_about

    for line in lines_about(write_new(folder, problem, block)):
        print_line(line)
