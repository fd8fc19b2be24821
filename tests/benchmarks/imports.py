"""What it costs to ask for results and to look a configuration up: `python -m tests.benchmarks.imports`.

Every figure is the CPU time of a new process (user and system, of it and of what it starts), the median of several. A
model's import and its first forward are given beyond what they stand on: beyond `import torch`, and beyond the second
forward. The first forward finds its build in the cache.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

COMMANDS = (
    ("--help",),
    ("best",),
    ("trials",),
    ("query", "select count(*) from trials"),
    ("db", "stats"),
    ("doctor",),
)

FORWARD = """
import resource
import torch
def spent():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
start = spent()
from tunebench.kernels.{name}.model import ModelNew
imported = spent()
reference = ModelNew.kernel.reference({sizes!r})
model = reference.make_model(0, torch.device("cpu"), ModelNew).eval()
model.wait = True
inputs = reference.make_inputs(0, torch.device("cpu"))
times = [spent()]
with torch.no_grad():
    for _ in range(2):
        model(*inputs)
        times.append(spent())
(choice,) = model.choices.values()
print(imported - start, times[1] - times[0] - (times[2] - times[1]), choice.tier)
"""

SMALL = {
    "scalar_mul": {"M": 64, "N": 64},
    "gemm_scale_bn": {"batch_size": 16, "in_features": 64, "out_features": 64},
}


def cpu_seconds(command: Sequence[str], environment: Mapping[str, str], *, first_line: bool = False) -> float:
    """CPU seconds of a process and its children; up to its first line of output, or to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if first_line:
            process.stdout.readline()
            process.kill()
        else:
            process.stdout.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(runs: Annotated[int, typer.Option(min=1, help="How often; the median counts.")] = 5) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "results.db"
        environment = {**os.environ, "TUNEBENCH_CACHE": f"{folder}/builds", "TUNEBENCH_DB": str(database)}
        python, tunebench = [sys.executable, "-c"], [sys.executable, "-m", "tunebench"]
        study = ["tune", "scalar_mul", "--device", "cpu", "--trials", "3", "--fresh", "--json"]
        sizes = [option for name, size in SMALL["scalar_mul"].items() for option in ("--size", f"{name}={size}")]
        subprocess.run([*tunebench, *study, *sizes], env=environment, check=True, stdout=subprocess.DEVNULL)

        def row(what: str, seconds: Sequence[float], note: str = "") -> None:
            print(f"{what:45} {statistics.median(seconds):6.3f} s  {note}", flush=True)

        row("import torch", [cpu_seconds([*python, "import torch"], environment) for _ in range(runs)])
        row("import tunebench", [cpu_seconds([*python, "import tunebench"], environment) for _ in range(runs)])
        for arguments in COMMANDS:
            line = arguments == ("doctor",)
            taken = [cpu_seconds([*tunebench, *arguments], environment, first_line=line) for _ in range(runs)]
            row(" ".join(("tunebench", *arguments)), taken, "to its first line" if line else "")
        nowhere = {**environment, "TUNEBENCH_DB": f"{folder}/nowhere.db"}
        for name, small in SMALL.items():
            for where, there in ((nowhere, "no database"), (environment, "a database")):
                code = FORWARD.format(name=name, sizes=small)
                outputs = [
                    subprocess.run(
                        [*python, code], env=where, check=True, capture_output=True, text=True
                    ).stdout.split()
                    for _ in range(runs + 1)
                ][1:]  # the first one fills the build cache
                note = f"{outputs[0][2]}, {there}"
                row(f"import {name}.model, beyond torch", [float(one[0]) for one in outputs])
                row(f"first forward of {name}", [float(one[1]) for one in outputs], note)


if __name__ == "__main__":
    typer.run(main)
