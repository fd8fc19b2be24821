"""The seconds that a user waits, from the start of a command to its end: `python -m tests.benchmarks.seconds`.

- `tune --seconds N` for six kernels, each with an empty build cache and an empty database; and how much of the best
  that any run found its winner reaches, by the speedup over the default in both runs' final rounds. The other run has
  `--longer` seconds.
- `check` of one file, three times, and a second time by a helper that is kept warm.
- The 60 configurations of scalar_mul (`scalar_mul_60.toml`), all verified and the winner confirmed, and a configuration
  of Kernel Tuner's on the same host, whose answer is compared to NumPy's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tests.benchmarks.check_files import FILES, run
from tests.benchmarks.rows import Row, Rows
from tests.benchmarks.throughput import HERE, STUDY

from tunebench.tuner.gate.boundary.box import Box

ROWS = {
    "softmax": "return torch.softmax(x, -1)",
    "rms_norm": "return torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=1e-5)",
    "layer_norm": "return torch.nn.functional.layer_norm(x, (x.shape[-1],))",
}
"""Kernels of rows that `tunebench new` writes from these forwards."""

_REFERENCE = """import torch

ROWS = {rows}
FEATURES = {features}


class Model(torch.nn.Module):
    def forward(self, x):
        {forward}


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return []
"""

_SHIPPED: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "gemm_scale_bn": (
        ("--mode=eval",),
        ("--mode=eval", "--size=batch_size=64", "--size=in_features=256", "--size=out_features=256"),
    ),
    "conv_min_add_mul": ((), ("--size=batch_size=2", "--size=height=16", "--size=width=16")),
    "scalar_mul": ((), ("--size=M=512", "--size=N=512")),
}
"""Options of the shipped kernels on a GPU, and on a CPU."""

_KERNEL_TUNERS = {"block_size": [128, 256], "vector_width": [1, 4], "items_per_thread": [1, 4]}
"""Eight of the sixty configurations: Kernel Tuner takes as long for each."""

_KEEP_WARM, _WARMING_SECONDS = "TUNEBENCH_KEEP_WARM", 25.0


def line(row: Row) -> str:
    """Say a row in one line."""
    parts = ", ".join(f"{name} {value:.2f}" for name, value in row["phases"].items() if value >= 0.1)
    return f"{row['command']:34} {row['wall']:6.2f} s  {row['found']}\n    {parts}"


def command(arguments: Sequence[str], folder: Path, **more: str) -> tuple[float, Any]:
    """Return the wall seconds of a command of ours, and what it printed as JSON."""
    places = {"TUNEBENCH_CACHE": f"{folder}/builds", "TUNEBENCH_DB": f"{folder}/results.db"}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tunebench", *arguments],
        env=_with_path(**places, **more),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}")
    return seconds, json.loads(done.stdout)


def _with_path(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(HERE / "src"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def tuned(target: str, options: Sequence[str], *, warm: bool = False) -> tuple[float, Any]:
    """Tune with an empty cache and an empty database; if warm, by a helper that has begun before."""
    with tempfile.TemporaryDirectory() as place:
        folder, more = Path(place), {_KEEP_WARM: "60"} if warm else {}
        if warm:
            command(["kernels", "--json"], folder, **more)
            time.sleep(_WARMING_SECONDS)
        wall, (report,) = command(["tune", target, *options, "--json"], folder, **more)
        if warm:
            subprocess.run([sys.executable, "-m", "tunebench", "stop"], env=_with_path(), check=False)
    return wall, report


def over_default(report: Any) -> float:
    """The winner's speedup over the default configuration; 1 where the study compared nothing."""
    return float(report.get("speedups", {}).get("default", {}).get("value", 1.0))


def written(name: str, folder: Path, device: str) -> str:
    """Have `tunebench new` write a kernel of rows, and return its folder."""
    rows, features = (8192, 4096) if device == "cuda" else (256, 512)
    problem = folder / f"{name}_problem.py"
    problem.write_text(_REFERENCE.format(rows=rows, features=features, forward=ROWS[name]), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "tunebench", "new", str(folder / name), "--from", str(problem)],
        env=_with_path(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return str(folder / name)


def kernel_tuner(elements: int) -> Any:
    """Return how many configurations Kernel Tuner timed, its seconds for one, and its best time."""
    sent = ["-m", "tests.benchmarks.tuners.scalar_mul_by_kernel_tuner", str(elements), json.dumps(_KERNEL_TUNERS)]
    done = subprocess.run([sys.executable, *sent], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(
    seconds: Annotated[int, typer.Option(help="Of each study.")] = 10,
    longer: Annotated[int, typer.Option(help="Of a second study of each kernel; 0 for none.")] = 40,
    only: Annotated[list[str] | None, typer.Option(help="tune, check or sixty; repeatable. Default: all.")] = None,
    kernels: Annotated[str, typer.Option(help="Those to tune, joined by commas. Default: all six.")] = "",
    runs: Annotated[int, typer.Option(min=1, help="Of check, and of the sixty.")] = 3,
    as_json: Annotated[Path | None, typer.Option("--json", help="Where the figures go.")] = None,
) -> None:
    """Run the commands and print what each took."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    of_device = [f"--device={device}"]
    asked = only or ["tune", "check", "sixty"]
    names = kernels.split(",") if kernels else [*ROWS, *_SHIPPED]
    with tempfile.TemporaryDirectory() as place, Rows(as_json, ("command",), line) as kept:
        folder = Path(place)
        for name in names if "tune" in asked else []:
            if kept.has(f"tune {name}"):
                continue
            target = written(name, folder, device) if name in ROWS else name
            options = [*of_device, *(_SHIPPED[name][device == "cpu"] if name in _SHIPPED else ())]
            wall, report = tuned(target, [*options, f"--seconds={seconds}"])
            others = [tuned(target, [*options, f"--seconds={longer}", "--trials=1000"])[1]] if longer else []
            share = over_default(report) / max(over_default(one) for one in [report, *others])
            kept.add(
                {
                    "command": f"tune {name}",
                    "wall": wall,
                    "phases": report["spent"]["phases"],
                    "trials": report["trials"],
                    "trials_of_the_other": [one["trials"] for one in others],
                    "share_of_best": share,
                    "speedups": report.get("speedups"),
                    "best": report["best"],
                    "best_of_the_other": [one["best"] for one in others],
                    "unasked": report["unasked"],
                    "found": f"{report['trials']} trials, {share:.3f} of the best; not asked: {report['unasked']}",
                }
            )
        for number in range(runs if "check" in asked else 0):
            kept.add(_checked(f"check, {number + 1}", folder, device))
        if "check" in asked:
            _checked("", folder, device, warm=True)
            time.sleep(_WARMING_SECONDS)
            kept.add(_checked("check, by a warm helper", folder, device, warm=True))
            subprocess.run([sys.executable, "-m", "tunebench", "stop"], env=_with_path(), check=False)
        if "sixty" not in asked:
            return
        study = tomllib.loads(STUDY.read_text(encoding="utf-8"))
        side = study["sizes"]["M"] if device == "cuda" else 256
        sizes = [f"--size=M={side}", f"--size=N={side}"]
        for name in [*(f"sixty, {number + 1}" for number in range(runs)), "sixty, by a warm helper"]:
            wall, report = tuned(str(STUDY), [*of_device, *sizes], warm="warm" in name)
            found = f"{report['counts']}, best {report['medians_ms']['best']:.3f} ms; not asked: {report['unasked']}"
            kept.add({"command": name, "wall": wall, "phases": report["spent"]["phases"], "found": found})
        if device == "cuda":
            theirs = kernel_tuner(side * side)
            found = f"{theirs['seconds']:.2f} s a configuration, {60 * theirs['seconds']:.0f} s for sixty"
            row = {"command": "Kernel Tuner", "wall": theirs["seconds"] * theirs["timed"], "phases": {}, "found": found}
            kept.add({**row, **theirs})


def _checked(name: str, folder: Path, device: str, *, warm: bool = False) -> Row:
    one = run(FILES[0], folder, Box.AUTO, device, warm=warm)
    return {
        "command": name,
        "wall": one.whole,
        "phases": {"stages": one.stages, "outside": one.outside},
        "found": one.slowest,
    }


if __name__ == "__main__":
    typer.run(main)
