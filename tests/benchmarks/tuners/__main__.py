"""Seconds to the optimum, by tuner, on one card in one run: `python -m tests.benchmarks.tuners --json FILE`.

RMSNorm of 8192 rows in CUDA C++ (60 configurations; Kernel Tuner compiles the same text) and in Triton (40; the
functions that `@triton.autotune` decorates are the same). Each tuner is a process with empty caches. Every
configuration is then timed by one clock that is none of theirs, `triton.testing.do_bench`. A tuner is there when the
best that it has timed until then, by its own clock, is within 1 % of the least time of all by that clock; seconds count
from the start of its process. Kernel Tuner's answers are compared with NumPy's, tunebench's pass its gate,
`@triton.autotune` compares none.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tests.benchmarks.rows import Row, Rows, require_gpu

import tunebench
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.study.subject import Subject

_HERE = Path(__file__).parent
_WITHIN = 1.01
Key = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Timed:
    """A configuration that a tuner timed.

    Attributes:
        seconds: since its process began.
        ms: by its own clock.
    """

    seconds: float
    configuration: Key
    ms: float


def key_of(configuration: Mapping[str, Any]) -> Key:
    """Return a configuration as a key."""
    return tuple(sorted(configuration.items()))


def seconds_to_optimum(timed: Sequence[Timed], truth: Mapping[Key, float]) -> float | None:
    """Return when a tuner's own best was first within 1 % of the least true time for good; None where it never was."""
    limit, there = _WITHIN * min(truth.values()), None
    for count in range(1, len(timed) + 1):
        best = min(timed[:count], key=lambda one: one.ms)
        is_near = truth[best.configuration] <= limit
        there = (timed[count - 1].seconds if there is None else there) if is_near else None
    return there


def true_ms(kernel: str, sizes: Mapping[str, int]) -> dict[Key, float]:
    """Time every configuration by `triton.testing.do_bench`, milliseconds."""
    import triton

    factory, device = load_model(str(_HERE / kernel)), find_device(None)
    subject = Subject.prepare(factory.kernel, factory, factory.kernel.reference(sizes), Mode.EVAL, device)
    model, (inputs, *_) = subject.model, [case.inputs for case in subject.oracle.cases]
    compiler = compiler_for(device, None, factory.kernel.languages)
    found = {}
    for configuration in factory.kernel.space.enumerate(subject.problem, device):
        model.pin(build_plan(factory.kernel, configuration, subject.problem, device, compiler))  # type: ignore[operator]
        with torch.no_grad():
            found[key_of(configuration)] = triton.testing.do_bench(lambda: model(*inputs), return_mode="median")
    return found


def by_tunebench(sampler: str, kernel: str, sizes: Mapping[str, int], caches: Path) -> tuple[list[Timed], float]:
    """Return what `tunebench tune` timed, and its seconds from start to exit."""
    database = caches / "results.db"
    command = ["-m", "tunebench", "tune", str(_HERE / kernel), "--no-compile"]
    command += ["--sampler", sampler, "--db", str(database)]
    began = time.time()
    _run([*command, *(f"--size={name}={size}" for name, size in sizes.items())], caches)
    taken = time.time() - began
    rows = tunebench.trials(limit=1000, db=database)
    return [
        Timed(row.recorded_at.replace(tzinfo=UTC).timestamp() - began, key_of(row.configuration), row.median_ms)
        for row in sorted(rows, key=lambda row: row.number)
        if row.median_ms is not None
    ], taken


def by_script(name: str, kernel: str, sizes: Mapping[str, int], caches: Path) -> tuple[list[Timed], float]:
    """Return what another tuner timed, and its seconds from start to exit."""
    space = load_model(str(_HERE / kernel)).kernel.space
    tunables = {one.name: list(one.values) for one in space.tunables}
    began = time.time()
    sent = [str(sizes["rows"]), str(sizes["features"]), json.dumps(tunables)]
    output = _run(["-m", f"tests.benchmarks.tuners.{name}", *sent], caches)
    taken = time.time() - began
    found = json.loads(output.strip().splitlines()[-1])
    return [Timed(one["at"] - began, key_of(one["configuration"]), one["ms"]) for one in found], taken


def _run(command: Sequence[str], caches: Path) -> str:
    places = {"TUNEBENCH_CACHE": "builds", "TRITON_CACHE_DIR": "triton", "CUPY_CACHE_DIR": "cupy"}
    environment = {**os.environ, **{name: str(caches / folder) for name, folder in places.items()}}
    done = subprocess.run([sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


_OURS = {
    "tunebench, its own search": partial(by_tunebench, "gp"),
    "tunebench, every configuration": partial(by_tunebench, "exhaustive"),
}
_TUNERS = {
    "row_norm": {**_OURS, "Kernel Tuner, every configuration": partial(by_script, "by_kernel_tuner")},
    "row_norm_triton": {**_OURS, "@triton.autotune, every configuration": partial(by_script, "by_autotune")},
}


def _line(row: Row) -> str:
    there = "never" if row["optimum_seconds"] is None else f"{row['optimum_seconds']:.1f} s"
    return (
        f"{row['kernel']:16} {row['tuner']:40} {row['timed']:3} timed, within 1 % after {there:>7}, "
        f"all {row['all_seconds']:.1f} s, its choice {row['over_best']:.3f} of the best"
    )


def main(
    rows: Annotated[int, typer.Option(help="Rows of the problem.")] = 8192,
    features: Annotated[int, typer.Option(help="Columns of the problem.")] = 4096,
    as_json: Annotated[Path | None, typer.Option("--json", help="Where the figures go.")] = None,
) -> None:
    """Tune two kernels by each tuner and print when it was within 1 % of the best."""
    require_gpu()
    sizes = {"rows": rows, "features": features}
    version = importlib.metadata.version("kernel-tuner")
    with Rows(
        as_json, ("kernel", "tuner"), _line, kernel_tuner=version, rows=str(rows), features=str(features)
    ) as kept:
        for kernel, tuners in _TUNERS.items():
            truth: dict[Key, float] = {}
            for tuner, tune in tuners.items():
                if kept.has(kernel, tuner):
                    continue
                truth = truth or true_ms(kernel, sizes)
                with tempfile.TemporaryDirectory() as folder:
                    timed, taken = tune(kernel, sizes, Path(folder))
                chosen = min(timed, key=lambda one: one.ms)
                kept.add(
                    {
                        "kernel": kernel,
                        "tuner": tuner,
                        "timed": len(timed),
                        "optimum_seconds": seconds_to_optimum(timed, truth),
                        "all_seconds": round(taken, 2),
                        "over_best": truth[chosen.configuration] / min(truth.values()),
                    }
                )


if __name__ == "__main__":
    typer.run(main)
