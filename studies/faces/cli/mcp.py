"""`mcp`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.faces.cli.output import print_json


def mcp(
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The working folder. Default: the current one.")
    ] = Path(),
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the tools with the schemas of what they take and answer, as JSON.")
    ] = False,
) -> None:
    """Serve tunebench to agents and programs: the Model Context Protocol on standard input and output.

    Tools list kernels, describe a space, check a file or a kernel, evaluate a configuration, run a study within a
    budget, read the best and explain a trial. Their database and caches are in the working folder, and so are the paths
    that they take. It needs the package mcp.
    """
    from tunebench.tuner.errors import UserError

    try:
        from tunebench.studies.faces.mcp.server import make_server, published
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "anyio", "mcp_types"):
            raise
        raise UserError(f"{error.name} is not installed: pip install 'tunebench[mcp]'") from error

    if schema:
        with tempfile.TemporaryDirectory() as nowhere:
            print_json(published(Path(nowhere)))
        return
    make_server(folder).run("stdio")
