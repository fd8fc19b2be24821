"""The exam's tables, for the page: `python -m tests.benchmarks.exam.table FILE`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.exam.problems import CLASSES

Row = dict[str, Any]


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values; NaN of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each class in Markdown: how many, how many KernelBench finds right, the means."""
    lines = [
        "| class | problems | right | over eager | over torch.compile | KernelBench's own ratio | lines |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for group, what in [*CLASSES.items(), ("", "all")]:
        some = [row for row in rows if group in ("", row["group"])]
        if some:
            judged = [row for row in some if row["right"] is not None]
            lines.append(
                f"| {what} | {len(some)} | {sum(row['right'] == 5 for row in judged)} of {len(judged)} | "
                f"{_mean([_first(row['over_eager']) for row in some])} | "
                f"{_mean([_first(row['over_compile']) for row in some])} | "
                f"{_mean([_own_ratio(row) for row in some])} | {_lines(some)} |"
            )
    return lines


def details(rows: Sequence[Row]) -> list[str]:
    """A line for each problem in Markdown."""
    lines = [
        "| problem | over eager | over torch.compile | roofline | right | KernelBench's own ratio | lines |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for group in CLASSES:
        for row in sorted((row for row in rows if row["group"] == group), key=lambda row: _number(row["name"])):
            level, number, *words = row["name"].split("_")
            lines.append(
                f"| {level.removeprefix('level')}.{number} {' '.join(words)} | {_interval(row['over_eager'])} | "
                f"{_interval(row['over_compile'])} | {_share(row)} | "
                f"{'' if row['right'] is None else row['right']} | {_figure(_own_ratio(row))} | {row['lines']} |"
            )
    return lines


def print_tables(rows: Sequence[Row]) -> None:
    """Both, and what was noted."""
    for line in [*summary(rows), "", *details(rows), ""]:
        print(line)
    for row in rows:
        for note in row["notes"]:
            print(f"- {row['name']}: {note}")


def _number(name: str) -> int:
    return int(name.split("_")[1])


def _first(interval: list[float] | None) -> float | None:
    return None if interval is None else interval[0]


def _own_ratio(row: Row) -> float | None:
    """KernelBench's own times."""
    eager, tuned = row["kernelbench_eager_ms"], row["kernelbench_tuned_ms"]
    return eager / tuned if eager and tuned and eager > 0 and tuned > 0 else None


def _mean(values: Sequence[float | None]) -> str:
    return _figure(geometric_mean([value for value in values if value is not None])) if any(values) else ""


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _interval(interval: list[float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.3g} [{interval[1]:.3g}, {interval[2]:.3g}]"


def _share(row: Row) -> str:
    return "" if row["share"] is None else f"{row['share']:.0%} of {row['bound']}"


def _lines(rows: Sequence[Row]) -> str:
    counts = sorted(row["lines"] for row in rows)
    return f"{counts[0]} to {counts[-1]}"


if __name__ == "__main__":
    print_tables(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rows"])
