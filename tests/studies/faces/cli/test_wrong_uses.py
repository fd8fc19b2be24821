"""Every option of every command with values that are wrong: one line each, and no trace of Python.

The command line itself says which options there are, so that a new one is tried as well.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import CommandLine
from hostile_count import tried
from processes import ended
from sample_results import ENVIRONMENT, STUDY, correct

import tunebench
from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.trials import trials
from tunebench.db.upkeep.prune import Pruning
from tunebench.studies.faces.cli import app
from tunebench.tuner.errors import UserError

KIND = "wrong uses of the command line"

WHOLE = ("", "x", "1.5", "-1", "1e3", "nan", "0x10", "²", str(2**63), str(2**70), "9" * 5000, "1\x1b[31m", "1\n2")
NUMBER = ("", "x", "-1", "nan", "-inf", "1e400", "1\x1b[31m", "1,5")
PAIRS = ("", "=", "x", "=1", "x=", "x\x1b=1", "x=1\n", "M=nan", "M=1e400", "M=-3", "M=" + "9" * 5000, "M=\x1b[31m")
TIMES = ("", "x", "31.12.2025", "2026-13-01", "9" * 400, "0000-00-00", "2026-01-01T00:00+99:00", "\x1b[31m")
NAMES = ("", "no such\x1b[31m", "no\nsuch", "x" * 100_000, "../../etc/passwd", "\udcff")
PLACES = (
    *("", "{folder}", "{folder}/missing.db", "{folder}/notes.txt", "/dev/null", "/proc/self/status", "x" * 5000),
    *("postgresql://[::1", "postgresql+psycopg://nobody@127.0.0.1:1/none", "nonsense://x", "sqlite://", "\x1b[31m"),
    "postgresql://host:99999999/x",
)
FILES = ("", "{folder}", "{folder}/missing/file", "{folder}/notes.txt", "/proc/1/nothing", "x" * 5000, "a\x1b[31m\nb")

BASE: dict[str, tuple[str, ...]] = {
    "tune": ("scalar_mul", "--device", "cpu", "--trials", "1", "--size", "M=4", "--size", "N=4"),
    "check": ("scalar_mul", "--device", "cpu"),
    "bench": ("scalar_mul", "--device", "cpu", "--size", "M=4", "--no-compile"),
    "frontier": ("4x4x4", "--device", "cpu", "--trials", "1", "--seconds", "1"),
    "compare": ("default", "reference", "scalar_mul", "--device", "cpu"),
    "replay": ("{folder}/missing.json",),
    "ship": ("scalar_mul",),
    "show": ("1",),
    "query": ("select 1",),
    "diff": ("source=source-1", "source=source-2"),
    "db export": ("-o", "{folder}/out.jsonl"),
    "db import": ("{folder}/missing.jsonl",),
    "db merge": ("{folder}/into.db", "{folder}/missing.db"),
}
"""What a command needs beside the option that is tried; `{folder}` holds a database and a file that is none."""

LEGAL = {
    ("doctor", "db"): "what is wrong with a database is what it is asked for",
    ("mcp", "folder"): "any folder that is there is served",
    ("prune", "source"): "no source has that digest, so nothing would go",
    ("demo", "output"): "a report may have any name, and replaces what has it",
    ("report", "output"): "a report may have any name, and replaces what has it",
}
"""Options of which some of these values are right, and why."""

MADE = ("{folder}/missing.db", "\x1b[31m")
MAKERS = ("db upgrade", "db import", "db merge", "tune")
"""Commands that make a database where there is none, and the places where they can."""


def commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(app)
    found = {name: one for name, one in root.commands.items() if name != "db"}
    return found | {f"db {name}": one for name, one in root.commands["db"].commands.items()}


def hostile(command: str, parameter: Any) -> tuple[str, ...]:
    """Values of an option or argument that no command should take."""
    name, annotation = parameter.name, str(parameter.type_descriptor.annotation)
    by_name = {
        **dict.fromkeys(("since", "until"), TIMES),
        **dict.fromkeys(("size", "tunable", "config"), PAIRS),
        **dict.fromkeys(("output", "files", "plot", "picture", "reference", "earlier", "into", "sources"), FILES),
        "db": tuple(place for place in PLACES if command not in MAKERS or place not in MADE),
    }
    if command == "prune" and name == "before":
        return TIMES
    if (command, name) == ("new", "folder"):  # anywhere is a place for one, where nothing is yet
        return ("{folder}", *(name for name in NAMES if "/" not in name))
    by_type = WHOLE if "int" in annotation else NUMBER if "float" in annotation else NAMES
    return by_name.get(name, by_type)


def uses() -> Iterator[tuple[str, str, list[tuple[str, ...]]]]:
    """By command and option, command lines that are wrong in that option alone."""
    for command, declared in commands().items():
        words, base = tuple(command.split()), BASE.get(command, ())
        needed = any(parameter.required for parameter in declared.params)
        unknown = [(*words, *base, option) for option in ("--no-such-option", "--\x1b[31m")]
        yield command, "unknown", unknown + [words] * needed
        for parameter in declared.params:
            if "bool" in str(parameter.type_descriptor.annotation) or (command, parameter.name) in LEGAL:
                continue
            values = hostile(command, parameter)
            if parameter.param_type_name == "option":
                option = parameter.opts[0]
                found = [(*words, *base, option), *((*words, *base, option, value) for value in values)]
            else:
                found = [(*words, value, *base[1:]) for value in values if value and not value.startswith("-")]
            yield command, parameter.name, found


USES = list(uses())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database, and a file that is none."""
    folder = tmp_path_factory.mktemp("wrong")
    with open_database(folder / "results.db") as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))
    (folder / "notes.txt").write_text("notes\n" * 100, encoding="utf-8")
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """The same for one test, since some commands make what was missing."""
    return Path(shutil.copytree(original, tmp_path / "wrong"))


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in this process: importing torch for each of a thousand questions would take an hour."""
    monkeypatch.setenv("TUNEBENCH_DB", str(folder / "results.db"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.chdir(folder)
    return CommandLine(monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option", "wrong"), USES, ids=[f"{use[0]} {use[1]}" for use in USES])
def test_a_wrong_use_gets_one_line(
    run: CommandLine, folder: Path, command: str, option: str, wrong: list[tuple[str, ...]]
) -> None:
    for use in wrong:
        done = run(*(word.replace("{folder}", str(folder)) for word in use))
        told = done.err.splitlines()
        assert done.code in (1, 2), (use, done)
        assert len(told) == 1 and len(done.err) > 10, (use, done)
        assert "Traceback" not in done.err and "\x1b" not in done.err + done.out, (use, done)
        tried[KIND] += 1
    assert not (folder / "cache" / "tunebench" / "tracebacks").exists(), f"{command} {option}"


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_text_is_an_error_everywhere(run: CommandLine, empty: str) -> None:
    """An unset variable of a shell is one, and as a condition it would hold for everything."""
    for command, declared in commands().items():
        for parameter in declared.params:
            if "bool" in str(parameter.type_descriptor.annotation):
                continue
            base = (*command.split(), *BASE.get(command, ()))
            if parameter.param_type_name == "option":
                done = run(*base, parameter.opts[0], empty)
            else:
                done = run(*command.split(), empty)
            assert "is empty: say which, or leave it out" in done.error, (command, parameter.name, done)


def test_an_unset_variable_prunes_nothing(run: CommandLine, folder: Path) -> None:
    assert "--source is empty" in run("prune", "--source", "", "--no-dry-run", "--no-backup").error
    with open_database(folder / "results.db") as database:
        assert len(trials(database)) == 1
        with pytest.raises(UserError, match="source is empty"):
            Pruning(source="")


@pytest.mark.parametrize(
    "line", ["trials --tunable a=1,,2", "tune scalar_mul --devices cuda:0,", "tune scalar_mul --start block_size=64,"]
)
def test_an_empty_element_of_a_list_is_an_error(run: CommandLine, line: str) -> None:
    assert "is empty" in run(*line.split()).error


@pytest.mark.parametrize(
    "ask",
    [
        lambda: tunebench.best(device=""),
        lambda: tunebench.trials(status=["correct", ""]),
        lambda: tunebench.trials("scalar_mul", tunables={"": 1}),
        lambda: tunebench.tune("scalar_mul", devices=["cpu", " "]),
        lambda: tunebench.connect(""),
        lambda: tunebench.bundle("folder", ""),
        lambda: tunebench.sweep(["a.toml", ""]),
    ],
)
def test_an_empty_text_is_an_error_from_python(ask: Callable[[], object]) -> None:
    with pytest.raises(UserError, match="is empty: say which, or leave it out"):
        ask()


def test_an_empty_text_is_an_error_in_a_study_file(run: CommandLine, folder: Path) -> None:
    (folder / "study.toml").write_text('kernel = "scalar_mul"\ndevice = ""\n', encoding="utf-8")
    assert "study.toml: 'device' is empty" in run("tune", folder / "study.toml").error


def test_enough_of_them_are_tried() -> None:
    assert sum(len(wrong) for _, _, wrong in USES) > 800


def spawn(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A shell's line in processes of its own; `tunebench` is the command."""
    script = f'set -o pipefail; tunebench() {{ "{sys.executable}" -m tunebench "$@"; }}; {line}'
    return ended("bash", "-c", script, TUNEBENCH_DB=str(folder / "results.db"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tunebench best --any-source >&-", "standard output is closed"),
        ("tunebench trials --json >/dev/full", "the output cannot be written: No space left on device"),
        ("tunebench query - <&-", "standard input"),
        ("tunebench query - </dev/zero", "standard input"),
        ("printf '\\xff' | tunebench query -", "UTF-8"),
    ],
)
def test_standard_streams_that_fail_get_one_line(folder: Path, line: str, message: str) -> None:
    done = spawn(line, folder)
    assert done.returncode == 2, done
    assert len(done.stderr.splitlines()) == 1 and message in done.stderr
    tried[KIND] += 1


@pytest.mark.parametrize("command", ["best --any-source", "trials --json"])
def test_a_reader_that_has_enough_is_no_failure(folder: Path, command: str) -> None:
    """The command dies of SIGPIPE, as every other one does: not with 1, which means no."""
    done = spawn(f"tunebench {command} | true", folder)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    tried[KIND] += 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 2, "there is not enough memory for this"),
        (OSError(2, "No such file or directory", "a\x1b.txt"), 2, "a\\x1b.txt: No such file or directory"),
        (OverflowError("too\nlarge"), 3, "OverflowError: too\\nlarge; its traceback is in "),
        (RecursionError(), 3, "RecursionError; its traceback is in "),
        (UnicodeEncodeError("ascii", "é", 0, 1, "not in range"), 3, "UnicodeEncodeError"),
        (KeyError("\x1b[31m"), 3, "KeyError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_last_resort(
    run: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("tunebench.db.connection.database.open_database", fail)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "elsewhere"))
    done = run("best")
    assert (done.code, done.out, len(done.err.splitlines())) == (code, "", 1)
    assert message in done.err and "\x1b" not in done.err
    if code == 3:
        file = Path(done.err.split("traceback is in ")[1].split(": please")[0])
        assert f"{type(error).__name__}" in file.read_text(encoding="utf-8")
        file.unlink()
