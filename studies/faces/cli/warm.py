"""`warm`."""

from __future__ import annotations

import typer

from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.options import NOTHING, Given, JsonOption, TargetsArgument
from tunebench.studies.faces.cli.output import print_json


@options_of("request.building:WarmRequest")
def warm(
    targets: TargetsArgument = None,
    given: Given = NOTHING,
    as_json: JsonOption = False,
) -> None:
    """Build ahead what tuned models would run, so that their first calls find it in the build cache.

    Exits with 1 where a build was refused.
    """
    from rich.console import Console

    from tunebench.studies.display.terminal import printable
    from tunebench.studies.tuning.ahead import BuiltAhead
    from tunebench.studies.tuning.ahead import warm as build

    console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    def show(built: BuiltAhead) -> None:
        what = f"{built.kernel.name} for {built.variant.architecture}, {built.problems[0]}"
        if len(built.problems) > 1:
            what += f" and {len(built.problems) - 1} more"
        if built.build is None:
            outcome = f"refused: {built.refusal}"
        else:
            outcome = "was built already" if built.build.cached else f"built in {built.build.seconds:.2f} s"
        console.print(printable(f"{what}: {outcome}"), markup=False)

    everything = build(targets or (), told=show, **given)
    if as_json:
        print_json(
            [
                {
                    "kernel": one.kernel.name,
                    "architecture": one.variant.architecture,
                    "variant_digest": one.variant.digest,
                    "problems": [str(problem) for problem in one.problems],
                    "cached": one.build is not None and one.build.cached,
                    "seconds": one.build and one.build.seconds,
                    "refusal": one.refusal,
                }
                for one in everything
            ]
        )
    if any(one.build is None for one in everything):
        raise typer.Exit(1)
