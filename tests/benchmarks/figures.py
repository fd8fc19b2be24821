"""Every figure of the front page and docs/figures.md, by one command on one card: `python -m tests.benchmarks.figures`.

Each section is a command of its own, whose JSON lies beside FILE until all are there: the same command goes on after a
cut-off, and the pages say where a section is of another card or commit. KERNELBENCH is a checkout of KernelBench with
what its `eval.py` imports. Kernel Tuner 1.5 has to be installed for the section `tuners`. `python -m
tests.benchmarks.pages` then writes the pages and the pictures.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tests.benchmarks.rows import require_gpu

from tunebench.kernels.runtime.registry import kernel_names, load_model

_LINEAR = "gemm_scale_bn gemm_sigmoid_residual"
_TF32 = "--mode eval --mode frozen --setting matmul=tf32 --seconds 1 --json"
SECTIONS = {
    "strict": "tunebench bench --seconds 3 --json",
    "tf32": f"tunebench bench gemm_div_sum_scale {_LINEAR} {_TF32}",
    "tf32_wide": f"tunebench bench gemm_sigmoid_residual {_TF32} --size batch_size=4096 --size input_size=4096 "
    "--size hidden_size=14336",
    "tf32_rows": f"tunebench bench gemm_scale_bn {_TF32} --batch 128 --batch 64 --batch 8 --batch 1",
    "exact": f"tunebench bench {_LINEAR} --accuracy eager --no-compile --seconds 2 --json",
    "rows": "tests.benchmarks.batches --json FILE",
    "kernelbench": "tests.benchmarks.kernelbench KERNELBENCH --json FILE",
    "tuners": "tests.benchmarks.tuners --json FILE",
    "host": "tests.benchmarks.host --json FILE",
    "host_reference": "tests.benchmarks.host --policy reference --json FILE",
}
"""The command of each section, as it is said in the pages too."""


def _run(name: str, command: str, kernelbench: Path, part: Path) -> Any:
    """Run a section's command and return what it printed as JSON, or wrote."""
    file = part.with_suffix(".rows")
    words = [{"FILE": str(file), "KERNELBENCH": str(kernelbench)}.get(word, word) for word in shlex.split(command)]
    printed = words[0] == "tunebench"
    done = subprocess.run([sys.executable, "-m", *words], stdout=subprocess.PIPE if printed else None, check=False)
    if done.returncode not in (0, 1):  # 1: a row was refused, and says so
        raise SystemExit(f"{name}: exit code {done.returncode}")
    return json.loads(done.stdout if printed else file.read_text(encoding="utf-8"))


def digests() -> dict[str, str]:
    """Return the digest of each shipped kernel's sources."""
    return {name: load_model(name).kernel.digest for name in kernel_names()}


def main(
    file: Annotated[Path, typer.Argument(help="Where the figures go.")],
    kernelbench: Annotated[Path, typer.Argument(help="A checkout of KernelBench.")],
    commit: Annotated[str, typer.Option(help="That is measured, where git cannot say.")] = "",
    seconds: Annotated[float, typer.Option(help="Begin no section later than this; the same command goes on.")] = 1e9,
    only: Annotated[list[str] | None, typer.Option(help="These sections; repeatable.")] = None,
) -> None:
    """Measure what is not there yet and, once all is, write it."""
    require_gpu()
    parts, began = file.with_suffix(".parts"), time.monotonic()
    parts.mkdir(parents=True, exist_ok=True)
    made = {
        "card": f"GPU-{torch.cuda.get_device_properties(0).uuid}",
        "commit": commit or subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    for name, command in SECTIONS.items():
        part = parts / f"{name}.json"
        if part.exists() or name not in (only or SECTIONS):
            continue
        if time.monotonic() - began > seconds:
            raise SystemExit(f"{name} and what follows are left: run the same command again")
        print(f"== {name}: {command}", flush=True)
        found = _run(name, command, kernelbench, part)
        part.write_text(json.dumps({**made, "found": found}, indent=1) + "\n", encoding="utf-8")
        print(f"== {name}: {time.monotonic() - began:.0f} s since the start", flush=True)
    if missing := [name for name in SECTIONS if not (parts / f"{name}.json").exists()]:
        raise SystemExit(f"left: {', '.join(missing)}")
    figures = {
        "command": "python -m tests.benchmarks.figures docs/results/figures.json KERNELBENCH",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "kernels": digests(),
        "sections": {name: json.loads((parts / f"{name}.json").read_text(encoding="utf-8")) for name in SECTIONS},
    }
    file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {file}")


if __name__ == "__main__":
    typer.run(main)
