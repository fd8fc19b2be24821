"""`kernels`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.faces.cli.options import JsonOption
from tunebench.studies.faces.cli.output import print_json


def kernels(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Also those in this folder and below it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the kernels that ship or are installed, and those of a folder. Their Python is run."""
    from tunebench.studies.display.terminal import print_table
    from tunebench.studies.tuning.spaces import find_kernels
    from tunebench.tuner.errors import UserError

    if folder is not None and not (folder := Path(folder)).is_dir():
        raise UserError(f"{folder} is not a folder: name one that has kernels in it, or none")
    found = find_kernels(folder)
    if as_json:
        print_json([one.values() for one in found])
        return
    rows = [
        (one.target, ", ".join(one.kernel.modes), ", ".join(one.kernel.dtypes), ", ".join(one.kernel.space.names))
        if one.kernel
        else (one.target, "", "", one.said)
        for one in found
    ]
    print_table(("kernel", "modes", "dtypes", "tunables"), rows)
