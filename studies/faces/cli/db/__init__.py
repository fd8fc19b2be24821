"""The `tunebench db` commands, which are about the results database itself."""

from __future__ import annotations

import typer

from tunebench.studies.faces.cli.command import Command
from tunebench.studies.faces.cli.db.check import check
from tunebench.studies.faces.cli.db.export import export
from tunebench.studies.faces.cli.db.import_ import import_
from tunebench.studies.faces.cli.db.merge import merge
from tunebench.studies.faces.cli.db.stats import stats
from tunebench.studies.faces.cli.db.upgrade import upgrade
from tunebench.studies.faces.cli.options import help_without_command

database_app = typer.Typer(
    name="db",
    help="The results database itself: upgrade it, check it, count what is in it.",
    invoke_without_command=True,
    callback=help_without_command,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for command in (upgrade, check, stats, export, merge):
    database_app.command(cls=Command)(command)
database_app.command("import", cls=Command)(import_)
