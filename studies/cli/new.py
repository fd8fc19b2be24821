"""`new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.cli.completion import complete_block


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
            autocompletion=complete_block,
        ),
    ] = None,
) -> None:
    """Write the folder of a new kernel, which tune takes at once.

    reference.py is the problem as it is, model.py a kernel made of a block, with a device function for the operations
    that it knows. What it does not know stays torch's own, around the kernel, and is marked as TODO.
    """
    from tunebench.studies.new.write import write_new
    from tunebench.studies.terminal import print_line

    made = write_new(folder, problem, block)
    print_line(f"written: {made.folder / 'reference.py'}, {made.folder / 'model.py'} (blocks.{made.block})")
    if made.left:
        print_line(f"TODO in model.py: torch still does {', '.join(made.left)}")
    print_line(f"next: tunebench tune {made.folder}")
