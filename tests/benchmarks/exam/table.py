"""The exam's tables, for the page: `python -m tests.benchmarks.exam.table FILE`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values; NaN of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each class in Markdown: how many, how many KernelBench finds right, the means, how many are slower.

    What is slower is slower than the better one of eager and torch.compile; where the latter is wrong, than eager.
    """
    lines = [
        "| class | problems | right | over eager | over torch.compile | ≥ 1.05 | < 0.98 | KernelBench's own |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    classes = sorted({(row["group"], row["block"]) for row in rows})
    for group, block in [*classes, *((group, "") for group in dict.fromkeys(group for group, _ in classes))]:
        some = [row for row in rows if row["group"] == group and block in ("", row["block"])]
        judged = [row for row in some if row["right"] is not None]
        over_better = [min(found) for row in some if (found := _ratios(row))]
        lines.append(
            f"| {group} {block or 'all'} | {len(some)} | {sum(row['right'] == 5 for row in judged)} of {len(judged)} | "
            f"{_mean([_first(row['over_eager']) for row in some])} | "
            f"{_mean([_first(row['over_compile']) for row in some])} | "
            f"{sum(one > 1.05 for one in over_better)} | {sum(one < 0.98 for one in over_better)} | "
            f"{_mean([_own_ratio(row) for row in some])} |"
        )
    return lines


def details(rows: Sequence[Row]) -> list[str]:
    """A line for each problem in Markdown."""
    lines = [
        "| problem | made of | over eager | over torch.compile | roofline | right | KernelBench's own ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: row["name"]):
        lines.append(
            f"| {row['name']} | {row['block']} | {_interval(row['over_eager'])} | {_interval(row['over_compile'])}"
            f"{' (wrong)' if row.get('compile_is_right') is False else ''} | "
            f"{_share(row)} | {'' if row['right'] is None else row['right']} | {_figure(_own_ratio(row))} |"
        )
    return lines


def print_tables(rows: Sequence[Row]) -> None:
    """Both, and what was noted."""
    for line in [*summary(rows), "", *details(rows), ""]:
        print(line)
    for row in rows:
        for note in row["notes"]:
            print(f"- {row['name']}: {note}")


def _ratios(row: Row) -> list[float]:
    """Over eager, and over torch.compile where its answer is right; where they are known."""
    compiled = None if row.get("compile_is_right") is False else row["over_compile"]
    return [interval[0] for interval in (row["over_eager"], compiled) if interval is not None]


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


if __name__ == "__main__":
    print_tables(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rows"])
