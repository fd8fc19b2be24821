"""What the commands share on the way in: options, and what their text means."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunebench.studies.cli.completion import complete_compiler, complete_kernel, complete_setting

if TYPE_CHECKING:
    from tunebench.db.connection.database import Database
    from tunebench.studies.checking.request import Declaration
    from tunebench.tuner.build import CompilerName
    from tunebench.tuner.problem import Accuracy

LARGEST = 2**63 - 1
"""The largest whole number that a database holds."""

LONGEST = 1e9
"""The longest limit of time, seconds: thirty years."""

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="The results database: a file, or a SQLAlchemy URL. Default: $TUNEBENCH_DB, else your own file.",
    ),
]
AtomicsOption = Annotated[
    bool, typer.Option("--atomics", help="Of a file: sums come in any order, so that runs differ in last bits.")
]
RewritesAlgebraOption = Annotated[
    bool,
    typer.Option(
        "--rewrites-algebra", help="Of a file: where the reference is not finite, the output may be so in another way."
    ),
]
DenseOption = Annotated[
    bool,
    typer.Option("--dense", help="Of a file: the output may lie in memory in any order of its axes, without gaps."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV on standard output, and nothing else there.")]
KernelArgument = Annotated[
    str | None,
    typer.Argument(metavar="[KERNEL]", help="Only this kernel. Default: every kernel.", autocompletion=complete_kernel),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only the device of this name, such as 'NVIDIA H200'. Default: every device."),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(metavar="DTYPE", help="Only problems of this dtype, such as float32. Default: every dtype."),
]
OnlyAccuracyOption = Annotated[
    str | None,
    typer.Option("--accuracy", metavar="NAME", help="Only results for tolerance, or only for eager. Default: both."),
]
ArchitectureOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only devices of this architecture, such as sm_90. Default: every architecture."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        metavar="NAME=VALUE",
        help="What PyTorch may do in eager, such as matmul=tf32; repeatable. Default: PyTorch's own settings.",
        autocompletion=complete_setting,
    ),
]
CompilerOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Only results of this compiler: nvrtc, inline, cpu or triton. Default: every compiler.",
        autocompletion=complete_compiler,
    ),
]
TargetsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KERNEL]...",
        help="Kernels' names or folders. Default: all shipped kernels, or those of the file of problems.",
        autocompletion=complete_kernel,
    ),
]
ProblemsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The problems: choices that a program saved (tunebench.save_choices), or a JSON list with the kernel, "
        "axes, dtype and options of each. Default: those that results are known of.",
    ),
]
RunDeviceOption = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", help="cuda, cuda:INDEX or cpu. Default: a GPU if there is one."),
]
RunDtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Convert model and inputs to float32, float64, float16 or bfloat16. Default: as the file makes them.",
    ),
]
AccuracyOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How wrong a configuration may be: tolerance, or eager for no more than eager is. Default: tolerance.",
    ),
]
AccuraciesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--accuracy",
        metavar="NAME",
        help="How wrong a tuned model may be: tolerance, or eager for no more than eager is; repeatable. "
        "Default: tolerance.",
    ),
]
SizesOption = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=NUMBER", help="Change a constant of reference.py; repeatable."),
]
RunCompilerOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="nvrtc or inline for a GPU, cpu for the CPU. Default: nvrtc on a GPU.",
        autocompletion=complete_compiler,
    ),
]

DevicesOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE,...",
        help="Several GPUs of one model, such as cuda:0,cuda:1, or all: each evaluates configurations.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=LARGEST,
        metavar="N",
        help="On the CPU: so many evaluate at once, each on its share of the cores. On Ray: so many at most.",
    ),
]
ExecutorOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Where to evaluate: local, or ray for a Ray cluster. Default: local."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="With --executor ray: the cluster's. Default: one that runs here or $RAY_ADDRESS, else a new one.",
    ),
]
TrialsOption = Annotated[
    int | None,
    typer.Option(min=1, max=LARGEST, help="Trials of each study, those of earlier runs included. Default: 100."),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        max=LONGEST,
        help="Seconds that each study's search may take. What is evaluated then has half as long again, at least 5 s, "
        "and is let go of unless nothing right is known. Default: no limit.",
    ),
]


def help_without_command(context: typer.Context) -> None:
    """Print the help of a group whose command is missing, on standard error: nothing was done.

    Raises:
        typer.Exit: with 2.
    """
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def _pairs(options: list[str], form: str) -> dict[str, str]:
    from tunebench.tuner.errors import UserError

    pairs = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not (separator and name.isprintable() and name and value):
            raise UserError(f"'{option}' is not of the form {form}")
        pairs[name] = value
    return pairs


def parse_values(options: list[str]) -> dict[str, bool | int | float | str]:
    """NAME=VALUE options as a mapping."""
    return {name: _value(text) for name, text in _pairs(options, "NAME=VALUE").items()}


def parse_sizes(options: list[str]) -> dict[str, int | float]:
    """NAME=NUMBER options as a mapping."""
    return {name: _number(name, text) for name, text in _pairs(options, "NAME=NUMBER").items()}


def parse_tunables(options: list[str]) -> dict[str, list[Any]]:
    """NAME=V1,V2,... options as a mapping to lists of values."""
    pairs = _pairs(options, "NAME=VALUE or NAME=V1,V2,...")
    return {name: [_value(part) for part in parse_list(name, text)] for name, text in pairs.items()}


def parse_list(option: str, text: str) -> list[str]:
    """The values of an option that takes several, separated by commas.

    Raises:
        UserError: one of them is empty.
    """
    from tunebench.tuner.empty import require_said

    values = text.split(",")
    require_said(f"a value of {option} '{text:.100}'", values)
    return values


def parse_settings(given: list[str] | None) -> dict[str, str] | None:
    """Settings of PyTorch's by name; None where none are given.

    Raises:
        UserError: there is no such setting, or it has no such value.
    """
    from tunebench.tuner.settings import parse_settings as parse

    return parse(_pairs(given, "matmul=tf32")) if given else None


def _number(name: str, text: str) -> int | float:
    from tunebench.tuner.errors import UserError

    value = _value(text)
    if isinstance(value, bool | str) or not abs(value) <= LARGEST:
        raise UserError(f"size '{name}' is '{text:.40}': give a positive number below 2^63")
    return value


def _value(text: str) -> bool | int | float | str:
    """What a value on the command line means: true, false, a number, else text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_moment(option: str, text: str | None) -> datetime | None:
    """A date or a time in ISO 8601; UTC where it names no zone.

    Raises:
        UserError: it is neither.
    """
    from tunebench.tuner.errors import UserError

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UserError(
            f"{option} '{text}' is not a time: write 2026-01-31 or 2026-01-31T12:00+01:00 (UTC where no zone is named)"
        ) from None


def require_database(named: str | None) -> None:
    """Refuse a database that cannot be read, where one was named, before anything takes long.

    Raises:
        DatabaseError: it cannot.
    """
    if named is None:
        return
    from tunebench.db.connection.database import open_database

    open_database(named, read_only=True).close()


def declarations(*, atomics: bool, rewrites_algebra: bool, dense: bool) -> list[Declaration]:
    """What the options of a file declare of its model."""
    from tunebench.studies.checking.request import Declaration

    given = {Declaration.ATOMICS: atomics, Declaration.REWRITES_ALGEBRA: rewrites_algebra, Declaration.DENSE: dense}
    return [one for one, is_so in given.items() if is_so]


def known_kernel(name: str | None, database: Database) -> str | None:
    """A kernel's name, if it ships or has results here.

    Raises:
        UnknownNameError: neither; the message has the nearest names.
    """
    from tunebench.db.queries.trials import kernels_with_results
    from tunebench.kernels.runtime.registry import kernel_names
    from tunebench.tuner.errors import UnknownNameError

    known = {*kernel_names(), *kernels_with_results(database)}
    if name is not None and name not in known:
        raise UnknownNameError("kernel", name, known)
    return name


def known_accuracy(name: str | None) -> Accuracy | None:
    """The accuracy of that name.

    Raises:
        UnknownNameError: there is none.
    """
    from tunebench.tuner.errors import member_of
    from tunebench.tuner.problem import Accuracy

    return member_of(Accuracy, "accuracy", name)


def known_compiler(name: str | None) -> CompilerName | None:
    """The compiler of that name.

    Raises:
        UnknownNameError: there is none.
    """
    from tunebench.tuner.build import CompilerName
    from tunebench.tuner.errors import member_of

    return member_of(CompilerName, "compiler", name)
