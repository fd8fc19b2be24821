"""`optimize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json


@options_of("request.measure:OptimizeRequest")
def optimize(
    script: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A file in KernelBench's form: Model, get_inputs and get_init_inputs."),
    ],
    given: options.Given = options.NOTHING,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:
    """Tune the regions of a model that torch.compile fuses, those first that take most of its time.

    A region's kernel is tuned beside Inductor's own code for it, and equal regions once. In programs,
    torch.compile(model, backend="tunebench") then calls the kernels that are faster. The same command tunes nothing
    of which results are known. Ctrl-C ends it with everything recorded.
    """
    import torch
    from rich.console import Console

    from tunebench.db.connection.database import open_database
    from tunebench.studies.inductor.optimize import optimize_regions, print_report, values_of_report
    from tunebench.studies.inductor.whole import faster_model
    from tunebench.studies.request.measure import OptimizeRequest
    from tunebench.studies.request.options import make
    from tunebench.studies.tuning.progress import StudyDisplay
    from tunebench.tuner.device import find_device
    from tunebench.tuner.reference import load_reference
    from tunebench.tuner.users_code import users_code

    request = make(OptimizeRequest, dict(given), "optimize")
    device = find_device(request.device).torch_device
    reference = load_reference(script, request.sizes, request.dtype)
    display = StudyDisplay(Console(stderr=True))
    display.starting([str(script)])
    with users_code("does not run", script), torch.no_grad():
        model, inputs = reference.make_model(0, device).eval(), reference.make_inputs(0, device)
        model(*inputs)
    with torch.no_grad(), open_database() as database, display:
        report = optimize_regions(model, inputs, request.seconds, database, display)
        faster_model(report, model, inputs)
    if as_json:
        print_json(values_of_report(report))
    else:
        print_report(report, verbose=verbose)
    if report.interrupted:
        raise typer.Exit(130)
