"""Writes docs/results/figures.json into the pages: `python -m tests.benchmarks.pages`.

A page has a figure between `<!-- figures: NAME -->` and `<!-- end of figures -->`, where this module writes the table
of that name, and nowhere else. The picture of the front page is drawn from the same file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import SECTIONS, digests

from tunebench.tuner.result import Baseline

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "results" / "figures.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "figures.md")
BLOCK = re.compile(r"(<!-- figures: (?P<name>\w+) -->\n).*?(<!-- end of figures -->)", re.S)

Figures = Mapping[str, Any]
Row = Mapping[str, Any]

_COMPUTES = {
    "scalar_mul": "A · s",
    "conv_min_add_mul": "Conv2d, minimum, bias, scale",
    "gemm_div_sum_scale": "x · Wᵀ, halved, summed over features, scaled",
    "gemm_scale_bn": "Linear, scale, BatchNorm1d",
    "gemm_sigmoid_residual": "Linear, y + k · sigmoid(y)",
}
_WHY = {
    "scalar_mul": "the copy rate, as eager",
    "conv_min_add_mul": "fused, TF32 as eager's convolution",
    "gemm_div_sum_scale": "algebra: no product is left, only column sums of W",
    "gemm_scale_bn": "half-precision parts, fused",
    "gemm_sigmoid_residual": "half-precision parts, fused",
}


def _number(value: float) -> str:
    """Return three significant digits, and three behind the point where it is near one."""
    if 0.5 <= value < 2:
        return f"{value:.3f}"
    return f"{value:#.3g}".rstrip(".") if value < 100 else f"{value:.0f}"


def _ratio(ratio: Mapping[str, float] | Sequence[float]) -> str:
    value, low, high = ratio if isinstance(ratio, Sequence) else (ratio["value"], ratio["low"], ratio["high"])
    return f"{_number(value)} [{_number(low)}, {_number(high)}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _found(figures: Figures, section: str) -> Any:
    return figures["sections"][section]["found"]


def _said(section: str) -> str:
    command = SECTIONS[section]
    return f"`{command}`:\n\n" if command.startswith("tunebench") else f"`python -m {command}`:\n\n"


def _mode(row: Row) -> str:
    return str(row["problem"]["options"].get("mode", "eval"))


def _name(row: Row) -> str:
    return f"{row['kernel']}, {_mode(row)}" if "mode" in row["problem"]["options"] else str(row["kernel"])


def _order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [*_COMPUTES].index(row["kernel"]))


def _errors(row: Row) -> str:
    one = row["errors"]["tuned"]
    largest, rms = one["multiple_of_reference"], one["rms_multiple_of_reference"]
    return f"{one['max_relative']:.1e}, {one['relative_norm']:.1e} ({_number(largest)}×, {_number(rms)}×)"


def _served(row: Row) -> str:
    return "the reference" if row["tier"] == "reference" else row["tier"]


def _over(row: Row, baseline: str) -> str:
    return _ratio(row["speedups"][baseline]) if baseline in row["speedups"] else ""


def _over_compiled(row: Row) -> list[str]:
    return [_over(row, "compiled_default"), _over(row, Baseline.COMPILED)]


def five(figures: Figures) -> str:
    """Return the front page's table: each kernel in eval mode and frozen, beside whatever its user would run."""
    tf32 = {_name(row): row for row in _found(figures, "tf32")["results"]}
    right = {
        row["kernel"]: row["correct"] for row in _found(figures, "kernelbench")["rows"] if row["form"] == "ModelNew"
    }
    rows = []
    for row in _order(_found(figures, "strict")["results"]):
        if _mode(row) == "train":
            continue
        name, is_frozen = row["kernel"], _mode(row) == "frozen"
        permitted = tf32.get(_name(row), row)
        served = " (the reference serves)" if permitted["tier"] == "reference" else ""
        rows.append(
            [
                f"`{name}`, frozen" if is_frozen else f"`{name}`: {_COMPUTES[name]}",
                _number(row["timings"]["tuned"]["median_ms"]),
                _over(row, Baseline.REFERENCE),
                _over(permitted, Baseline.REFERENCE) + served,
                " and ".join(_over_compiled(row)),
                _errors(row),
                "" if is_frozen else f"{right[name]} of 5",
                "weights' share kept between calls" if is_frozen else _WHY[name],
            ]
        )
    head = ["kernel", "ms", "over eager, strict fp32", "over eager, TF32 permitted"]
    head += ["over torch.compile, default and max-autotune", "error: largest, RMS (of eager's)", "right in KernelBench"]
    return _table([*head, "why"], rows)


def source(figures: Figures) -> str:
    """Return what was measured, and which kernels have changed since."""
    sections = figures["sections"]
    driver = sections["strict"]["found"]["environment"]["driver"]
    made = f"{figures['device']}, driver {driver}, torch {figures['torch']}: `{figures['command']}`."
    runs: dict[tuple[str, str, str], list[str]] = {}
    for name, one in sections.items():
        runs.setdefault((one["card"], one["commit"][:7], one["date"]), []).append(name)
    for number, ((_, commit, date), names) in enumerate(runs.items(), 1):
        made += f" Card {number}, commit {commit}, {date}: {', '.join(names)}."
    changed = [name for name, digest in digests().items() if figures["kernels"].get(name) != digest]
    since = f" The source has changed since of {', '.join(changed)}." if changed else ""
    return f"{made}{since}\n"


def kernels(figures: Figures) -> str:
    """Return the table of every kernel and mode at KernelBench's sizes."""
    head = ["kernel", "ms", "over eager", "over torch.compile, default", "max-autotune", "over the default"]
    rows = [
        [
            _name(row),
            _number(row["timings"]["tuned"]["median_ms"]),
            _over(row, Baseline.REFERENCE),
            *_over_compiled(row),
            _over(row, Baseline.DEFAULT),
            "" if row["share_of_roofline"] is None else f"{row['share_of_roofline']:.0%}",
            _errors(row),
        ]
        for row in _order(_found(figures, "strict")["results"])
    ]
    means = [
        row["speedups"]["reference"]["value"] for row in _found(figures, "strict")["results"] if _mode(row) == "eval"
    ]
    mean = _number(math.prod(means) ** (1 / len(means)))
    said = f"\nGeometric mean over eager of the {len(means)} in eval mode: {mean}.\n"
    return _said("strict") + _table([*head, "roofline", "error: largest, RMS (of eager's)"], rows) + said


def tf32(figures: Figures) -> str:
    """Return the table where the program permits TF32."""
    head = ["kernel", "eager, ms", "tuned, ms", "what serves", "over eager", "over torch.compile, default"]
    rows = [
        [
            f"{_name(row)}, {'×'.join(map(str, row['problem']['axes'].values()))}",
            *(_number(row["timings"][name]["median_ms"]) for name in ("reference", "tuned")),
            _served(row),
            _over(row, Baseline.REFERENCE),
            *_over_compiled(row),
        ]
        for section in ("tf32", "tf32_wide", "tf32_rows")
        for row in _order(_found(figures, section)["results"])
    ]
    said = "".join(map(_said, ("tf32", "tf32_wide", "tf32_rows")))
    return said + _table([*head, "max-autotune"], rows)


def exact(figures: Figures) -> str:
    """Return the table of what is no more wrong than eager."""
    head = ["kernel", "ms", "what serves", "over eager", "error: largest, RMS (of eager's)"]
    rows = [
        [
            _name(row),
            _number(row["timings"]["tuned"]["median_ms"]),
            _served(row),
            _over(row, Baseline.REFERENCE),
            _errors(row),
        ]
        for row in _order(_found(figures, "exact")["results"])
    ]
    return _said("exact") + _table(head, rows)


def rows(figures: Figures) -> str:
    """Return the table by the number of rows, medians over eager."""
    found = _found(figures, "rows")["rows"]
    names = list(dict.fromkeys(row["kernel"] for row in found))
    by = {(row["kernel"], row["batch"]): row for row in found}
    lines = [
        [
            str(batch),
            *(
                ", ".join(_number(by[name, batch][what][0]) for what in ("compiled", "eval", "frozen"))
                for name in names
            ),
        ]
        for batch in sorted({row["batch"] for row in found})
    ]
    head = ["rows", *(f"{name}: torch.compile, tuned, frozen" for name in names)]
    return _said("rows") + _table(head, lines)


def kernelbench(figures: Figures) -> str:
    """Return the table of KernelBench's own evaluation."""
    lines = [
        [
            row["kernel"],
            row["form"],
            f"{row['correct']} of 5",
            _number(row["reference_ms"]) if row["reference_ms"] else "",
            _number(row["new_ms"]) if row["new_ms"] else "",
            _number(row["reference_ms"] / row["new_ms"]) if row["reference_ms"] and row["new_ms"] else "",
        ]
        for row in _found(figures, "kernelbench")["rows"]
    ]
    return _said("kernelbench") + _table(
        ["kernel", "file", "right", "its reference, ms", "the file, ms", "ratio"], lines
    )


def tuners(figures: Figures) -> str:
    """Return the table of tuners."""
    lines = [
        [
            "CUDA C++, 60" if row["kernel"] == "row_norm" else "Triton, 40",
            row["tuner"],
            str(row["timed"]),
            "never" if row["optimum_seconds"] is None else _number(row["optimum_seconds"]),
            _number(row["all_seconds"]),
            f"{row['over_best']:.3f}",
        ]
        for row in _found(figures, "tuners")["rows"]
    ]
    head = ["source, configurations", "tuner", "timed", "within 1 % of the best after, s", "ends after, s"]
    return _said("tuners") + _table([*head, "its choice over the best"], lines)


def host(figures: Figures) -> str:
    """Return the tables of the host's time, without gradients."""
    told = ""
    for section in ("host", "host_reference"):
        lines = [
            [
                row["kernel"],
                row["mode"],
                *(_number(row["no_gradients"][name]) for name in ("eager", "tuned")),
                *("{:+.1f} [{:+.1f}, {:+.1f}]".format(*row["no_gradients"][name]) for name in ("more", "again")),
            ]
            for row in _found(figures, section)["rows"]
        ]
        head = ["kernel", "mode", "eager, µs", "tuned, µs", "more than eager, µs", "a second eager model, µs"]
        told += _said(section) + _table(head, lines) + "\n"
    return told.removesuffix("\n")


BLOCKS: dict[str, Callable[[Figures], str]] = {
    one.__name__: one for one in (five, source, kernels, tf32, exact, rows, kernelbench, tuners, host)
}


def rendered(text: str, figures: Figures) -> str:
    """Return a page with its blocks as the figures have them."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found['name']](figures)}\n{found[3]}", text)


def main() -> None:
    """Write the pages and draw the pictures."""
    from tests.benchmarks.batches import picture
    from tests.benchmarks.picture import draw, speed_ups

    figures = json.loads(FILE.read_text(encoding="utf-8"))
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8"), figures), encoding="utf-8")
    images = ROOT / "docs" / "images"
    draw(speed_ups(_found(figures, "strict")), images / "speedups.png")
    draw(
        picture(_found(figures, "rows")["rows"], f"{figures['device']}, torch {figures['torch']}"),
        images / "batches.png",
    )


if __name__ == "__main__":
    main()
