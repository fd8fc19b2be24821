"""The command line in this process: the real `main`, quick enough for many questions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import typer

from tunebench.studies.faces.cli.run import run


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed with `--json`, which is all there is on standard output."""
        return json.loads(self.out, parse_constant=_refuse)

    @property
    def error(self) -> str:
        """The one line about a question that was wrong."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("tunebench: ") and len(self.err.strip().splitlines()) == 1, self.err
        return self.err.strip()


_made = cache(typer.main.get_command)
"""The commands are the same for every question, and putting them together takes longer than most answers."""


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


class CommandLine:
    """Runs commands against one database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        self._monkeypatch.setattr(typer.main, "get_command", _made)
        self._monkeypatch.setattr("sys.argv", ["tunebench", *map(str, arguments)])
        self._capsys.readouterr()
        try:
            code = run()
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 0
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err)
