"""Count the instructions of kernels for Hopper, without a GPU: `python -m tests.benchmarks.instructions FOLDER ...`.

Prints for each entry point of a kernel's default configuration its instructions, by Triton's `nvdisasm`: how many there
are, how many read memory, by 16 bytes or less, and how many are of the slow unit; then registers and spilled bytes.
Sizes are the problem's own; the inputs have memory that nothing is written to.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import torch
import triton
import typer
from tests.hopper import HOPPER

from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.request.text import read_values
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.gate.values import mapped

_SLOW = ("MUFU", "F2F", "F2I", "I2F", "FRND")
_NAME = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)")


def main(
    folders: Annotated[list[str], typer.Argument(help="Kernels' names or folders.")],
    config: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="In place of a default.")] = None,
) -> None:
    """Print what each entry point of the kernels is compiled to."""
    chosen = read_values("--config", config or [])
    for folder in folders:
        model_class = load_model(folder)
        kernel = model_class.kernel
        reference = kernel.reference({})
        with torch.device("meta"):
            inputs = reference.get_inputs()
        model = reference.make_model(0, torch.device("cpu"), model_class).eval()
        problem = model.problem(*mapped(inputs, lambda one: torch.empty_like(one, device="cpu")))
        if problem is None:
            raise typer.BadParameter(f"{folder}: {model.reason}")
        configuration = kernel.space.choose(chosen, problem, HOPPER)
        build = NvrtcCompiler().compile(kernel.variant(configuration, problem, HOPPER.architecture))
        texts = _disassembled(build.code)
        for name, figures in build.figures.items():
            names = _NAME.findall(texts[name])
            kinds = Counter(one.split(".")[0] for one in names)
            wide = sum(one.startswith("LDG") and ".128" in one for one in names)
            slow = ", ".join(f"{kinds[kind]} {kind}" for kind in _SLOW if kinds[kind])
            print(
                f"{kernel.name} {name}: {len(names)} instructions, {kinds['LDG']} loads ({wide} of 16 bytes), "
                f"slow: {slow or 'none'}; {figures.registers} registers, {figures.spill_stores} bytes spilled"
            )


def _disassembled(code: bytes) -> dict[str, str]:
    """The text of each entry point."""
    (program,) = Path(triton.__file__).parent.glob("backends/nvidia/bin/nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run([program, "-c", file.name], check=True, capture_output=True, text=True).stdout
    parts = re.split(r"^\s*\.section\s+\.text\.(\w+),.*$", text, flags=re.MULTILINE)
    return dict(
        zip(parts[1::2], (re.split(r"^\s*\.section", part, flags=re.MULTILINE)[0] for part in parts[2::2]), strict=True)
    )


if __name__ == "__main__":
    typer.run(main)
