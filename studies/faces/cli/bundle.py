"""`bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.options import NOTHING, Given, JsonOption, TargetsArgument
from tunebench.studies.faces.cli.output import print_json


@options_of("request.building:BundleRequest")
def bundle(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; a bundle there is replaced.")],
    targets: TargetsArgument = None,
    given: Given = NOTHING,
    as_json: JsonOption = False,
) -> None:
    """Write binaries of what tuned models would run, which need no compiler where they run.

    Programs take them from there with TUNEBENCH_BUNDLE=DIR, or tunebench.use_bundle(DIR).
    """
    from dataclasses import asdict

    from tunebench.studies.display.terminal import print_table
    from tunebench.studies.tuning.ahead import bundle as write

    written = write(folder, targets or (), **given)
    if as_json:
        print_json([asdict(one) for one in written])
    else:
        rows = [(one.kernel, one.architecture, f"{one.bytes / 1024:.0f} KiB", one.file) for one in written]
        print_table(("kernel", "architecture", "size", "file"), rows)
