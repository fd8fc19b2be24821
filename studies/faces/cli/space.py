"""`space`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json
from tunebench.studies.request.completion import complete_kernel


@options_of("tuning.study_file:StudyRequest", "modes", "sizes", "dtype", "device", "settings")
def space(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A kernel's name or folder, or a study file.", autocompletion=complete_kernel
        ),
    ],
    given: options.Given = options.NOTHING,
    as_json: options.JsonOption = False,
) -> None:
    """Describe what a study of a kernel would search: tunables, constraints, and how many configurations are valid."""
    from tunebench.studies.display.terminal import print_line, print_table
    from tunebench.studies.tuning.spaces import describe_space
    from tunebench.studies.tuning.study_file import request_of

    described = describe_space(request_of(target, given))
    if as_json:
        print_json([one.values() for one in described])
        return
    for one in described:
        rows = [
            (
                tunable["name"],
                str(tunable["default"]),
                ", ".join(map(str, tunable["values"])),
                "only in some configurations" if tunable["conditional"] else "",
            )
            for tunable in one.tunables
        ]
        title = f"{one.kernel} ({one.problem}) on {one.device}: {one.valid} valid configurations"
        print_table(("tunable", "default", "values", ""), rows, title)
        print_line(f"constraints: {', '.join(one.constraints) or 'none'}")
