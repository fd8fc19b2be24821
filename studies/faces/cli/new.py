"""`new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.options import NOTHING, Given


@options_of("request.building:NewRequest")
def new(
    folder: Annotated[
        Path, typer.Argument(metavar="NAME", help="The folder to write; its name is the kernel's.", show_default=False)
    ],
    given: Given = NOTHING,
) -> None:
    """Write the folder of a new kernel, which agrees with its problem and which tune takes.

    reference.py is the problem as it is, model.py a kernel of all of it: a block with device functions, passes over
    loop nests around it, or passes alone. Before it is written it runs beside the reference on the CPU, in eval and in
    train mode. Where there is no kernel of all of it, a line says why, and model.py and NAME.cu are to be written by
    hand; `tunebench optimize` finds the parts that have kernels, and leaves the rest to Inductor.
    """
    from tunebench.tuner.fork_server import TRACER, start_forkserver

    # It imports torch while this process does; and Inductor, after which no fork of it can use a GPU, nor need it.
    start_forkserver(["tunebench.studies.writing.new.make", TRACER])

    from tunebench.studies.display.terminal import print_line
    from tunebench.studies.writing.new.telling import lines_about
    from tunebench.studies.writing.new.write_new import write_new

    for line in lines_about(write_new(folder, **given)):
        print_line(line)
