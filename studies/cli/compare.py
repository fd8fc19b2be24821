"""`compare`: is one really faster?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.cli.completion import complete_kernel
from tunebench.studies.cli.options import (
    DatabaseOption,
    JsonOption,
    RunCompilerOption,
    RunDeviceOption,
    parse_sizes,
    parse_tunables,
)
from tunebench.studies.cli.output import print_json

if TYPE_CHECKING:
    from tunebench.studies.compare import Duel, FileQuestion, KernelQuestion, KernelSide

_SIDE = "A trial's number, NAME=VALUE[,NAME=VALUE...] (the rest as in the default), default, reference, or a .py file."


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    second: Annotated[str, typer.Argument(metavar="B", help="The same for what it is compared with.")],
    kernel: Annotated[
        str | None,
        typer.Argument(
            metavar="[KERNEL]",
            help="The kernel's name or folder. Default: that of a trial.",
            autocompletion=complete_kernel,
        ),
    ] = None,
    device: RunDeviceOption = None,
    compiler: RunCompilerOption = None,
    mode: Annotated[str | None, typer.Option(help="eval or train. Default: the kernel's first mode.")] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Change a constant of reference.py; repeatable.")
    ] = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Is A really faster than B? Both are checked, then timed in interleaved rounds with a second copy of B.

    A is faster where the whole 99 % interval of the rounds' ratios lies beyond 1 %; anything less is a tie. Of a file,
    its ModelNew is meant, or its Model where it has no other; `reference` is then the same file's Model.
    Exit code 0 where A is faster, 1 where it is not, 2 where the question was wrong.
    """
    from tunebench.tuner.isolation import start_forkserver

    start_forkserver(["tunebench.studies.compare"])  # it imports torch while this process does

    from tunebench.studies.compare import compare as compare_sides
    from tunebench.tuner.result import Decision

    question: FileQuestion | KernelQuestion
    if first.endswith(".py") or second.endswith(".py"):
        question = _about_files(first, second, device, mode)
    else:
        options = {"device": device, "compiler": compiler, "sizes": parse_sizes(size or [])}
        given: dict[str, object] = {name: value for name, value in options.items() if value not in (None, {})}
        question = _about_kernel((first, second), kernel, mode, db, given)
    duel = compare_sides(question)
    if as_json:
        print_json(_values(duel))
    else:
        _print(duel)
    if duel.decision is not Decision.FASTER:
        raise typer.Exit(1)


def _about_files(first: str, second: str, device: str | None, mode: str | None) -> FileQuestion:
    from tunebench.studies.compare import REFERENCE, FileQuestion
    from tunebench.tuner.errors import UserError
    from tunebench.tuner.kernel import Mode

    for name, others in ((first, ""), (second, ", or with 'reference'")):
        if not (name == REFERENCE and others) and not Path(name).is_file():
            raise UserError(f"'{name}' is not a file: a file is compared with another file{others}")
    if mode not in (None, Mode.EVAL, Mode.TRAIN):
        raise UserError(f"mode '{mode}' is neither eval nor train")
    return FileQuestion(Path(first), None if second == REFERENCE else Path(second), device, Mode(mode or Mode.EVAL))


def _about_kernel(
    asked: tuple[str, str], kernel: str | None, mode: str | None, db: str | None, options: dict[str, object]
) -> KernelQuestion:
    from tunebench.kernels.runtime.registry import load_model
    from tunebench.studies.compare import KernelQuestion
    from tunebench.studies.study_file import make_request
    from tunebench.tuner.errors import UnknownNameError, UserError
    from tunebench.tuner.kernel import Mode

    named = [_side(text, db) for text in asked]
    sides = [side for _, side in named]
    recorded = sorted({name for name, _ in named if name is not None})
    if kernel is None and len(recorded) != 1:
        why = f"they are of {' and '.join(recorded)}" if recorded else "name the kernel behind them"
        raise UserError(f"'{asked[0]}' and '{asked[1]}' cannot be compared: {why}")
    target = kernel or recorded[0]
    declared = load_model(target).kernel
    if any(name != declared.name for name in recorded):
        raise UserError(f"a trial of {recorded[0]} cannot be compared as one of {declared.name}")
    modes = [side.problem.options["mode"] for side in sides if side.problem and "mode" in side.problem.options]
    chosen = mode or (*modes, *declared.modes)[0]
    if chosen not in declared.modes:
        raise UnknownNameError(f"mode of kernel '{declared.name}'", chosen, declared.modes)
    return KernelQuestion(make_request({"kernel": target, **options}, target), Mode(chosen), sides[0], sides[1])


def _side(text: str, db: str | None) -> tuple[str | None, KernelSide]:
    """What is meant, and the kernel that it brings."""
    from tunebench.db.connection.database import open_database
    from tunebench.studies.compare import DEFAULT, REFERENCE, KernelSide, side_of_trial

    if text in (DEFAULT, REFERENCE):
        return None, KernelSide(text, {} if text == DEFAULT else None)
    if text.isascii() and text.isdigit():
        with open_database(db, read_only=True) as database:
            return side_of_trial(database, int(text))
    tunables = parse_tunables(text.replace(",", " ").split())
    return None, KernelSide(text, {name: values[0] for name, values in tunables.items()})


def _values(duel: Duel) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "a": duel.first,
        "b": duel.second,
        "problem": duel.problem,
        "device": duel.device,
        "decision": duel.decision,
        "refusal": duel.refusal,
        "ratio": asdict(duel.ratio) if duel.ratio else None,
        "control": asdict(duel.control) if duel.control else None,
        "medians_ms": dict(duel.medians_ms),
        "samples_ms": {name: list(samples) for name, samples in (duel.samples_ms or {}).items()},
    }


def _print(duel: Duel) -> None:
    from tunebench.studies.terminal import print_table, printable
    from tunebench.tuner.result import Decision

    if duel.ratio is None or duel.control is None:
        print(printable(duel.refusal))
        return
    medians = duel.medians_ms
    rows = [
        ("A", duel.first, f"{medians['first']:.4g} ms"),
        ("B", duel.second, f"{medians['second']:.4g} ms"),
        ("B again", "", f"{medians['control']:.4g} ms"),
    ]
    print_table(("", "", "median"), rows, f"{duel.problem} on {duel.device}")
    words = {Decision.FASTER: "A is faster than B", Decision.SLOWER: "A is slower than B", Decision.TIE: "a tie"}
    assert duel.decision is not None
    interval = f"{100 * duel.ratio.confidence:g} % interval of {duel.ratio.rounds} rounds"
    print(f"{words[duel.decision]}: {duel.ratio}, {interval}")
    if duel.control.decision is not Decision.TIE:
        print(f"the two copies of B were told apart ({duel.control}): these rounds decide nothing, try again")
