"""Tuned models where models run, each row beside what it was before anything was done for such programs.

`python -m tests.benchmarks.programs FOLDER [--kernelbench CHECKOUT] [--only NAME]`, on a GPU, runs the benchmarks
`host`, `problems`, `training`, `compiled`, `half_types` and `kernelbench` one after the other, each in a process of its
own and without a results database, as far as their results are not in the folder yet. Each prints and writes its rows
one by one, so that the same command goes on where a run was cut off, and says how long it took. At the end, and with
`--print` at any time, it prints one table from what is there. For `problems` the build cache is empty at first. What is
old was measured on an H200 with torch 2.11.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.rows import Row, read_rows

NAMES = ("host", "problems", "training", "compiled", "half_types", "kernelbench")
Rows = list[Row]
Line = tuple[str, str, str]

HOST_BEFORE: dict[tuple[str, str], tuple[int, int]] = {
    ("scalar_mul", "eval"): (16, 75),
    ("conv_min_add_mul", "eval"): (80, 182),
    ("gemm_div_sum_scale", "eval"): (71, 145),
    ("gemm_div_sum_scale", "frozen"): (57, 105),
    ("gemm_scale_bn", "eval"): (98, 654),
    ("gemm_scale_bn", "frozen"): (95, 554),
    ("gemm_sigmoid_residual", "eval"): (72, 240),
    ("gemm_sigmoid_residual", "frozen"): (46, 196),
}
"""Microseconds of a warm forward, eager and tuned."""
PROBLEMS_BEFORE: list[tuple[str, tuple[int, ...], float]] = [
    ("gemm_scale_bn", (1, 8192, 8192), 0.42),
    ("gemm_scale_bn", (7, 8192, 8192), 0.65),
    ("gemm_scale_bn", (512, 1024, 1024), 0.61),
    ("gemm_scale_bn", (512, 4096, 1024), 0.70),
    ("gemm_scale_bn", (512, 1000, 777), 0.56),
    ("gemm_sigmoid_residual", (1, 8192, 8192), 0.87),
    ("gemm_sigmoid_residual", (512, 1024, 1024), 0.78),
    ("conv_min_add_mul", (32, 64, 64, 56, 56), 0.88),
]
"""Times as fast as eager, by the sizes in their order."""
KERNELBENCH_BEFORE = {
    "gemm_scale_bn": "2.79 / 2.78 ms: 1.00×",
    "gemm_sigmoid_residual": "2.76 / 2.76 ms: 1.00×",
    "conv_min_add_mul": "4 of 5 seeds",
    "gemm_div_sum_scale": "0 of 5 seeds",
}
_NOT_SLOWER = 0.98


def run(name: str, folder: Path, checkout: Path | None) -> bool:
    """One benchmark, its table on this terminal and its figures in the folder; whether it got to its end."""
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--json", str(folder / f"{name}.json")]
    print(f"\n{name}", flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as own:
        environment = {**os.environ, "TUNEBENCH_DB": f"{own}/none.db"}
        if name == "problems":
            environment["TUNEBENCH_CACHE"] = own
        if name == "kernelbench":
            command.append(str(checkout))
        code = subprocess.run(command, env=environment, check=False).returncode
    print(f"{name}: {time.perf_counter() - began:.0f} s{f', ended with {code}' if code else ''}", flush=True)
    return code == 0


def host(rows: Rows) -> Iterator[Line]:
    """Warm forwards at small sizes."""
    for row in rows:
        before = HOST_BEFORE.get((row["kernel"], row["mode"]))
        old = "" if before is None else f"{before[0]} / {before[1]} µs: {before[1] / before[0]:.2f}"
        for key in ("no_gradients", "gradients"):
            eager, tuned, (more, low, high) = row[key]["eager"], row[key]["tuned"], row[key]["more"]
            new = f"{eager:.1f} / {tuned:.1f} µs: {tuned / eager:.2f} ({more:+.2f} µs [{low:+.2f}, {high:+.2f}])"
            yield f"host, {row['kernel']}, {row['mode']}, {key.replace('_', ' ')}", old, new
            old = ""


def problems(rows: Rows) -> Iterator[Line]:
    """What nobody measured."""
    for kernel, sizes, old in PROBLEMS_BEFORE:
        row = next((one for one in rows if one["kernel"] == kernel and tuple(one["sizes"].values()) == sizes), None)
        if row is None:
            continue  # the run was cut off before
        new = f"{_ratio(row['device'])} on the device, {_ratio(row['caller'])} as a caller waits, by {row['served']}"
        yield f"{kernel} at {'×'.join(map(str, sizes))}, {row['mode']}", f"{old}×", new
    for kind in ("device", "caller"):
        for who, key in (("", kind), (", eager against itself", f"{kind}_of_copy")):
            surely = sum(row[key][2] < _NOT_SLOWER for row in rows)
            worst = min(row[key][0] for row in rows)
            told = f"{surely} of {len(rows)} wholly below {_NOT_SLOWER}, the worst median {worst:.3f}"
            yield f"problems nobody measured, {kind}{who}", "", told
    first = sorted(row["first_s"] for row in rows)
    yield "first call that waits for its builds", "conv 6 to 10 s, gemm 1 to 3 s", f"at most {first[-1]:.2f} s"


def training(rows: Rows) -> Iterator[Line]:
    """`model(x)` with gradients enabled, and a training step."""
    for row in rows:
        eager, tuned = row["forward"]
        yield f"model(x), {row['kernel']}, {row['mode']}", "1.00×", f"{eager / tuned:.2f}×"
        if "step" in row:
            told = f"{row['step']:.3f} ms; {row['first']:.3f}, then {row['later']:.3f} ms"
            yield f"training step, {row['kernel']}, {row['mode']}", "", told


def compiled(rows: Rows) -> Iterator[Line]:
    """`torch.compile(model)`."""
    for row in rows:
        taken = row["milliseconds"]
        told = ", ".join(f"{name} {taken['eager'] / one:.2f}×" for name, one in taken.items() if name != "eager")
        yield f"torch.compile, {row['kernel']}, {row['mode']}", "the reference's operations", told


def half_types(rows: Rows) -> Iterator[Line]:
    """Half types and autocast."""
    for row in rows:
        new = f"{_ratio(row['over_eager'])}, by {row['served']}"
        yield f"{row['type']}, {row['kernel']}, {row['mode']}", "the reference's operations", new


def kernelbench(rows: Rows) -> Iterator[Line]:
    """KernelBench's own evaluation."""
    for row in rows:
        old = KERNELBENCH_BEFORE.get(row["kernel"], "") if row["form"] == "ModelNew" else ""
        eager, new = row["reference_ms"], row["new_ms"]
        told = f"{row['correct']} of 5 seeds"
        if eager and new:
            told += f", {eager:.3g} / {new:.3g} ms: {eager / new:.2f}×"
        yield f"KernelBench, {row['kernel']}, {row['form']}", old, f"{told}{' ' + row['error'] if row['error'] else ''}"


TABLES = dict(zip(NAMES, (host, problems, training, compiled, half_types, kernelbench), strict=True))


def _ratio(figures: list[float]) -> str:
    value, low, high = figures
    return f"{value:.3g}× [{low:.3g}, {high:.3g}]"


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description="Tuned models in programs, beside what they were before.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kernelbench", type=Path, metavar="CHECKOUT")
    parser.add_argument("--only", choices=NAMES, action="append", help="Run no other. Repeatable.")
    parser.add_argument("--print", action="store_true", help="Run none.")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    ended = True
    for name in () if asked.print else asked.only or NAMES:
        if not (asked.folder / f"{name}.json").exists() and (name != "kernelbench" or asked.kernelbench is not None):
            ended &= run(name, asked.folder, asked.kernelbench)
    print()
    for name, table in TABLES.items():
        rows, are_all = read_rows(asked.folder / f"{name}.json")
        if not are_all:
            print(f"{name}: {f'cut off after {len(rows)} rows' if rows else 'not run'}")
        for line in table(rows) if rows else ():
            print(f"{line[0]:62} {line[1]:30} {line[2]}")
    raise SystemExit(0 if ended else 1)


if __name__ == "__main__":
    main()
