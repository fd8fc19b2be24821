"""`space`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.cli import options
from tunebench.studies.cli.completion import complete_kernel, complete_mode
from tunebench.studies.cli.output import print_json


def space(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A kernel's name or folder, or a study file.", autocompletion=complete_kernel
        ),
    ],
    mode: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODE", help="eval, train or frozen; repeatable. Default: all.", autocompletion=complete_mode
        ),
    ] = None,
    sizes: options.SizesOption = None,
    dtype: options.RunDtypeOption = None,
    device: options.RunDeviceOption = None,
    setting: options.SettingsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Describe what a study of a kernel would search: tunables, constraints, and how many configurations are valid."""
    from tunebench.studies.spaces import describe_space
    from tunebench.studies.study_file import request_of
    from tunebench.studies.terminal import print_line, print_table

    asked: dict[str, object] = {
        "modes": mode,
        "sizes": options.parse_sizes(sizes or []),
        "dtype": dtype,
        "device": device,
    }
    asked["settings"] = options.parse_settings(setting)
    described = describe_space(request_of(target, {name: value for name, value in asked.items() if value}))
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
