"""`compare`: is one really faster?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json
from tunebench.studies.request.completion import complete_kernel

if TYPE_CHECKING:
    from tunebench.studies.checking.compare import Side
    from tunebench.studies.checking.compare_report import CompareReport

_SIDE = "A trial's number, NAME=VALUE[,NAME=VALUE...] (the rest as in the default), default, reference, or a .py file."


@options_of("request.measure:CompareRequest")
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    second: Annotated[str, typer.Argument(metavar="B", help="The same for what it is compared with.")],
    kernel: Annotated[
        str | None,
        typer.Argument(
            metavar="[KERNEL]",
            help="The kernel's name or folder, or a study file. Default: that of a trial, which brings its sizes too.",
            autocompletion=complete_kernel,
        ),
    ] = None,
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Is A really faster than B? Both are checked, then timed in interleaved rounds with a second copy of B.

    A is faster where the whole 99 % interval of the rounds' ratios lies beyond 1 %, a tie where it lies within 3 %
    of 1; anything else is inconclusive. Of a file, its ModelNew is meant, or its Model where it has no other;
    `reference` is then the same file's Model.
    Exit code 0 where A is faster, 1 where it is not, 2 where the question was wrong.
    """
    options.require_database(db)

    from tunebench.tuner.fork_server import start_forkserver

    start_forkserver(["tunebench.studies.checking.compare"])  # it imports torch while this process does

    from tunebench.studies.checking.compare import compare as compare_sides
    from tunebench.studies.checking.compare import question_of
    from tunebench.tuner.result import Decision

    question = question_of(_side(first), _side(second), kernel=kernel, options=given, database=db)
    duel = compare_sides(question)
    if as_json:
        print_json(_values(duel))
    else:
        _print(duel)
    if duel.decision is not Decision.FASTER:
        raise typer.Exit(1)


def _side(text: Side) -> Side:
    """Return the side that an argument's text means; return anything but text as it is."""
    from tunebench.studies.request.text import read_values

    if not isinstance(text, str):
        return text
    if text in ("default", "reference") or text.endswith(".py"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    return read_values("", text.replace(",", " ").split())


def _values(duel: CompareReport) -> dict[str, object]:
    from tunebench.studies.display.tables import values_of
    from tunebench.tuner.settings import described

    return values_of(
        duel,
        *("problem", "device", "trusted", "box", "decision", "refusal", "ratio", "control", "medians_ms"),
        a=duel.first,
        b=duel.second,
        eager=described(duel.settings),
        samples_ms=duel.samples_ms or {},
    )


def _print(duel: CompareReport) -> None:
    from tunebench.studies.display.tables import eager_had
    from tunebench.studies.display.terminal import TRUSTED, print_table, printable
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
    title = f"{duel.problem} on {duel.device}, {eager_had([duel.settings])}"
    print_table(("", "", "median"), rows, title)
    words = {Decision.FASTER: "A is faster than B", Decision.SLOWER: "A is slower than B", Decision.TIE: "a tie"}
    words[Decision.INCONCLUSIVE] = "inconclusive"
    assert duel.decision is not None
    interval = f"{100 * duel.ratio.confidence:g} % interval of {duel.ratio.rounds} rounds"
    print_line(f"{words[duel.decision]}: {duel.ratio}, {interval}{TRUSTED if duel.trusted else f', {duel.box}'}")
    if duel.control.differs:
        print_line(f"the two copies of B were told apart ({duel.control}): these rounds decide nothing, try again")
