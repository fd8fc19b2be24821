"""`doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption
from tunebench.studies.faces.cli.output import print_json
from tunebench.studies.request.completion import complete_kernel


def doctor(
    kernel: Annotated[
        str | None,
        typer.Argument(
            metavar="[KERNEL]",
            help="A kernel's folder or name. Default: look at this machine.",
            autocompletion=complete_kernel,
        ),
    ] = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is on this machine: GPU, driver, compilers, database, and what will run where. Changes nothing.

    With a KERNEL, show what is wrong with its folder; exit code 1 where something is.
    """
    from dataclasses import asdict

    from tunebench.studies.checking.doctor import examine, examine_kernel
    from tunebench.studies.display.terminal import print_beside

    diagnoses = []
    for diagnosis in examine(db) if kernel is None else examine_kernel(kernel):
        diagnoses.append(diagnosis)
        if not as_json:
            texts = [text for text in (diagnosis.detail, diagnosis.remedy) if text]
            print_beside(f"{'yes' if diagnosis.works else 'NO':3}  {diagnosis.subject}", texts, indent=36)
    if as_json:
        print_json([asdict(diagnosis) for diagnosis in diagnoses])
    if kernel is not None and not all(diagnosis.works for diagnosis in diagnoses):
        raise typer.Exit(1)
