"""Texts made from the commands and their options: the command line's reference, and the keywords of Python's face.

`python -m tunebench.studies.faces.cli.reference > docs/cli.md`
`python -m tunebench.studies.faces.cli.reference keywords > studies/request/keywords.py`
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer

from tunebench.studies.faces.cli import app
from tunebench.studies.request.options import options_of, spelled

_HEAD = """# The command line

Made from the commands by `python -m tunebench.studies.faces.cli.reference > docs/cli.md`; `--help` says the same.

Exit codes: 0 done, 1 the answer is no, 2 a usage error, 3 an error of tunebench, 130 Ctrl-C."""

_KEYWORDS_HEAD = '''"""Keywords of Python's face, for type checkers; made by `tunebench.studies.faces.cli.reference`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypedDict
'''


def reference() -> str:
    """The reference as Markdown."""
    root = typer.main.get_command(app)
    return "\n\n".join([_HEAD, *_sections(root, "tunebench")]) + "\n"


def _sections(command: Any, name: str) -> Iterator[str]:
    """A command's section, or those of its subcommands."""
    subcommands = getattr(command, "commands", {})
    for word, subcommand in subcommands.items():
        if not subcommand.hidden:
            yield from _sections(subcommand, f"{name} {word}")
    if subcommands:
        return
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join([name, "[OPTIONS]", *(_usage(argument) for argument in arguments)])
    parts = [f"## {name}", f"```\n{usage}\n```", inspect.cleandoc(command.help or "")]
    rows = [f"| {_name(one)} | {_cell(one.help)} |" for one in command.params if one.help and not one.hidden]
    if rows:
        parts.append("\n".join(["| | |", "| --- | --- |", *rows]))
    yield "\n\n".join(parts)


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f" `{parameter.metavar or parameter.name.upper()}`"
    return names + value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def keywords() -> str:
    """The types of the keywords of Python's face, as a module's text."""
    package = import_module("tunebench")
    face = [getattr(package, name) for name in package.__all__]
    found = {one.__name__: vars(one)["declaration"] for one in face if "declaration" in getattr(one, "__dict__", ())}
    return _KEYWORDS_HEAD + "".join(
        f"\n\nclass {name.title().replace('_', '')}Options(TypedDict, total=False):\n"
        f'    """The keywords of `{name}`."""\n\n'
        + "".join(f"    {one}: {spelled(field.annotation)} | None\n" for one, field in options_of(*declared).items())
        for name, declared in sorted(found.items())
    )


if __name__ == "__main__":
    print(keywords() if sys.argv[1:] == ["keywords"] else reference(), end="")
