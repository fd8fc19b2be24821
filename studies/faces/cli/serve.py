"""`serve`."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json


@options_of("request.serving:ServeRequest")
def serve(
    given: options.Given = options.NOTHING,
    judge: Annotated[
        bool, typer.Option("--judge", help="Serve the judge: POST /check, POST /verify, GET /health.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Offer the correctness gate as a judge over HTTP, until Ctrl-C: files in, signed verdicts out.

    Each request is a check in processes of its own, which runs the file that it brings. A client that asks too often
    is told when to come back.
    """
    from tunebench.studies.request.options import make
    from tunebench.studies.request.serving import ServeRequest
    from tunebench.studies.serving.server import serving
    from tunebench.tuner.errors import UserError

    if not judge:
        raise UserError("nothing to serve: give --judge")
    # Ctrl-C is the ordinary end, as soon as it serves.
    with serving(make(ServeRequest, given, "serve")) as server, contextlib.suppress(KeyboardInterrupt):
        if as_json:
            print_json({"address": server.address, "key": server.judge.key.name})
        else:
            print_line(f"the judge answers at {server.address}, signs with key {server.judge.key.name}, until Ctrl-C")
        sys.stdout.flush()
        threading.Event().wait()
