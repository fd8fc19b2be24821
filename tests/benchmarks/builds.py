"""What building the variants that ship takes, and what a first forward waits for: `python -m tests.benchmarks.builds`.

Variants are cross-compiled by NVRTC in this process, one after the other, with or without a GPU; seconds are of one
core (CPU time), beside those of the clock. The first forwards are of new processes with an empty build cache, on the
GPU if there is one, else by g++ on the CPU: with the reference serving until the kernel is built, and waiting for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Annotated

import typer
from tests.benchmarks.host import SIZES

from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.kernels.runtime.shipped import files_of, read_file
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.variant import Variant

LIMIT_SECONDS = 2.0

FORWARD = """
import time, torch
from tunebench import load, set_policy
set_policy("recorded", wait={wait})
factory = load({name!r})
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
reference = factory.kernel.reference({sizes!r})
model, inputs = reference.make_model(0, device, factory).eval(), reference.make_inputs(0, device)
with torch.no_grad():
    reference.make_model(0, device).eval()(*inputs)
    began = time.perf_counter()
    model(*inputs)
    first = time.perf_counter() - began
    while any(choice.being_built for choice in model.choices.values()):
        time.sleep(0.01)
        model(*inputs)
print(first, time.perf_counter() - began)
"""


def shipped_variants() -> dict[str, dict[str, Variant]]:
    """By kernel, then by a problem that it serves: all variants that shipped results name."""
    found: dict[str, dict[str, Variant]] = {}
    for name in kernel_names():
        kernel = load_model(name).kernel
        variants: dict[str, tuple[str, Variant]] = {}
        for file in map(read_file, files_of(kernel)):
            for result in file.results:
                variant = kernel.variant(Configuration(result.configuration), result.problem, file.architecture)
                variants.setdefault(variant.digest, (f"{result.problem}", variant))
        found[name] = dict(variants.values())
    return found


def main(first_forwards: Annotated[bool, typer.Option(help="Time first forwards too.")] = True) -> None:
    """Print the tables; exit code 1 where a variant takes longer than it may."""
    compiler, slow = NvrtcCompiler(), 0
    print(
        f"{compiler.version()}: seconds of one core and of the clock; registers and spilled bytes of the largest kernel"
    )
    for name, variants in shipped_variants().items():
        for problem, variant in variants.items():
            wall, cpu = time.perf_counter(), time.process_time()
            build = compiler.compile(variant)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            registers = max(figures.registers or 0 for figures in build.figures.values())
            spilled = max(figures.spill_stores or 0 for figures in build.figures.values())
            slow += cpu > LIMIT_SECONDS
            print(f"{name:22}{cpu:6.2f}{wall:7.2f}{registers:5}{spilled:5}  {problem}", flush=True)
    for name in kernel_names() if first_forwards else ():
        print(
            f"first forward of {name}:",
            ", ".join(_first_forward(name, wait=wait) for wait in (False, True)),
            flush=True,
        )
    raise typer.Exit(int(slow > 0))


def _first_forward(name: str, *, wait: bool) -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TUNEBENCH_CACHE": folder, "TUNEBENCH_DB": f"{folder}/none.db"}
        command = [sys.executable, "-c", FORWARD.format(name=name, sizes=SIZES[name], wait=wait)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    first, ready = map(float, done.stdout.split())
    return f"waiting {first:.3f} s" if wait else f"{first:.3f} s, its kernel {ready:.2f} s later"


if __name__ == "__main__":
    typer.run(main)
