"""`ship`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption
from tunebench.studies.faces.cli.output import print_json

if TYPE_CHECKING:
    from tunebench.kernels.runtime.tuned_module import TunedModule


def ship(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KERNEL]...",
            help="Kernels' names or folders, study files, or trials' numbers. Default: all shipped.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this device's results; cpu: this machine's CPU. Default: every GPU's."),
    ] = None,
    same_code_as: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION",
            help="Instead: ship again what shipped at this git revision, where the winners' machine code is the same.",
        ),
    ] = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the winners beside their kernels, as tuned/DEVICE.json: whoever has such a device need not tune.

    Winners of the final rounds of studies of the kernel as it is now are written; results of problems that the database
    does not have stay as long as the kernel is the same, and so do those that are surely faster than what the database
    has, under the same torch, CUDA and driver. Where the reference was faster, the file says that alone.

    After an edit that left the winners' machine code alone, --same-code-as takes over what shipped, without a GPU;
    the exit code is 1 where a winner is other code now. So does a new version of tunebench that identifies calls in
    another way, with the revision HEAD.
    """
    from tunebench.db.connection.database import open_database
    from tunebench.kernels.runtime.registry import kernel_names, load_model
    from tunebench.studies.display.tables import values_of
    from tunebench.studies.display.terminal import print_line, print_table
    from tunebench.studies.tuning.targets import find_target
    from tunebench.studies.writing.ship import ship as write

    named = dict.fromkeys(find_target(target, db).request.kernel for target in targets or kernel_names())
    models = [load_model(target) for target in named]
    if same_code_as is not None:
        _ship_again(models, same_code_as, device, as_json=as_json)
        return
    kernels = [model.kernel for model in models]
    with open_database(db, read_only=True) as database:
        shipments = write(database, kernels, device)
    if as_json:
        names = ("kernel", "device", "results", "reference_is_faster", "better")
        print_json([values_of(one, *names, file=one.path) for one in shipments])
    elif shipments:
        rows = [
            (s.kernel, s.device, str(s.results), str(s.better), str(s.reference_is_faster), str(s.path))
            for s in shipments
        ]
        print_table(("kernel", "device", "results", "better ones stay", "reference is faster", "file"), rows)
    without = [kernel.name for kernel in kernels if kernel.name not in {s.kernel for s in shipments}]
    if without:
        print_line(
            f"nothing to ship of {', '.join(without)}: no study of the kernel as it is now has a winner there; "
            "'tunebench tune' finds one",
            error=True,
        )
        raise typer.Exit(1)


def _ship_again(models: Sequence[type[TunedModule]], revision: str, device: str | None, *, as_json: bool) -> None:
    from tunebench.studies.checking.regress.ship_again import ship_again
    from tunebench.studies.display.tables import values_of
    from tunebench.studies.display.terminal import print_table
    from tunebench.tuner.errors import UnknownNameError

    every = [one for model in models for one in ship_again(model, revision)]
    found = [one for one in every if device in (None, one.device)]
    if not found:
        raise UnknownNameError(
            f"device that something shipped for at {revision}", str(device), {s.device for s in every}
        )
    if as_json:
        print_json(
            [
                values_of(
                    one,
                    *("kernel", "device"),
                    file=one.path,
                    renewed=list(map(str, one.renewed)),
                    changed=list(map(str, one.changed)),
                )
                for one in found
            ]
        )
    else:
        rows = [(s.kernel, s.device, str(len(s.renewed)), str(len(s.changed)), str(s.path or "")) for s in found]
        print_table(("kernel", "device", "same code", "other code", "file"), rows)
    if any(one.changed for one in found):
        raise typer.Exit(1)
