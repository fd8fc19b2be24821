"""How much `tunebench new` turns into kernels: `python -m tests.benchmarks.coverage [CHECKOUT] --json FILE`.

Each module of `modules.toml`, in each dtype, and each problem of levels 1 and 2 of a checkout of KernelBench has its
folder written and compared with its reference on the CPU, as `tunebench new` does: in a process of its own, for as long
as TUNEBENCH_LOAD_SECONDS allows. Prints a line each, and counts. `--json FILE` is written row by row: the same command
goes on after a cut-off, as long as the sources that write kernels are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from tests.benchmarks.modules import DTYPES, MODULES
from tests.benchmarks.rows import Row, Rows

from tunebench.studies.display.terminal import print_table
from tunebench.studies.writing.new.new_kernel import NewKernel
from tunebench.studies.writing.new.write_new import write_new
from tunebench.tuner.errors import TunebenchError, first_line
from tunebench.tuner.scratch import scratch

LEVELS = ("level1", "level2")


class Extent(StrEnum):
    """How much of a problem kernels do."""

    ALL = "entirely"
    NONE = "by hand"


@dataclass(frozen=True)
class Case:
    """A problem's text, by its name in a group."""

    group: str
    name: str
    text: str


def cases(checkout: Path | None) -> Iterator[Case]:
    """Yield the modules by dtype, then the problems of a checkout of KernelBench, where there is one, by number."""
    for dtype in DTYPES:
        yield from (Case(f"modules in {dtype}", name, module.file(dtype)) for name, module in MODULES.items())
    folders = () if checkout is None else (checkout, checkout / "KernelBench")
    for level in LEVELS:
        files = [file for folder in folders for file in (folder / level).glob("*.py")]
        for file in sorted(files, key=lambda file: int(file.stem.split("_")[0])):
            yield Case(level, file.stem, file.read_text(encoding="utf-8"))


def covered(case: Case) -> Row:
    """Write a problem's kernel, and say what is in it."""
    with scratch() as folder:
        problem = folder / f"{case.name}.py"
        problem.write_text(case.text, encoding="utf-8")
        try:
            made = write_new(folder / "kernel", problem)
        except TunebenchError as error:
            made = NewKernel(folder, "", reason=first_line(error).removeprefix(f"{folder}/"))
    extent = Extent.ALL if made.block else Extent.NONE
    missing = f"not compared: {made.checked.missing}" if made.checked.missing else ""
    why = "; ".join(filter(None, (made.reason, made.hidden, missing)))
    return {"group": case.group, "name": case.name, "extent": extent, "block": made.block, "why": why}


def _line(row: Row) -> str:
    return f"{row['group']} {row['name']}: {row['extent']}: {' '.join(filter(None, (row['block'], row['why'])))}"


def print_counts(rows: Iterable[Row]) -> None:
    """Print how many problems of each group are how far in kernels."""
    counts = Counter((row["group"], row["extent"]) for row in rows)
    groups = dict.fromkeys(group for group, _ in counts)
    table = [(group, *(str(counts[group, extent]) for extent in Extent)) for group in groups]
    print_table(("problems", *Extent), table)


def main(
    checkout: Annotated[Path | None, typer.Argument(help="A checkout of KernelBench. Default: none.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="PART", help="Of a group and a name; repeatable.")] = None,
    file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows there too.")] = None,
) -> None:
    """Count what `tunebench new` turns into kernels."""
    with Rows(file, ("group", "name"), _line, only=" ".join(only or ())) as rows:
        for case in cases(checkout):
            asked = not only or any(part in f"{case.group} {case.name}" for part in only)
            if asked and not rows.has(case.group, case.name):
                rows.add(covered(case))
    print_counts(rows)


if __name__ == "__main__":
    typer.run(main)
