"""NVIDIA's compute-sanitizer on the launches of one call: accesses out of bounds, and races in shared memory.

The launches are recorded from a call on small inputs and made again by a process that imports nothing heavy, each
buffer an allocation of its own, so that an access beyond its end is one into nothing.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from tunebench.tuner.gate import launch_again
from tunebench.tuner.gate.launches import Launch
from tunebench.tuner.gate.record import Refusal
from tunebench.tuner.gate.rig import Rig

TOOLS = ("memcheck", "racecheck")
NOT_INSTALLED = "compute-sanitizer is not installed, so neither memcheck nor racecheck was run"

_SECONDS = 120
_FOUND = 86  # the exit code that the sanitizer is asked for when it has found something


def sanitized(rig: Rig) -> None:
    """Every launch of a call on the reduced problem, under each tool."""
    if rig.device.type != "cuda":
        rig.pass_over("asked on CUDA devices only")
        return
    if (program := find_sanitizer()) is None:
        rig.pass_over(NOT_INSTALLED)
        return
    pair = rig.pair()
    launches = rig.contender.launches(pair.candidate, pair.inputs(1))
    if not launches:
        rig.pass_over("no launch of a kernel that was compiled here")
        return
    for tool in TOOLS:
        if (finding := run_tool(program, tool, launches, rig.device.index or 0)) is not None:
            raise Refusal(f"{tool}: {finding}")
        rig.count()


def find_sanitizer() -> str | None:
    """The compute-sanitizer on the path or beside the CUDA toolkit, None where there is none."""
    found = shutil.which("compute-sanitizer")
    folder = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return found or shutil.which(f"{folder}/bin/compute-sanitizer")


def run_tool(program: str, tool: str, launches: Sequence[Launch], device_index: int) -> str | None:
    """What a tool finds in these launches, in one line; None where it finds nothing.

    Raises:
        Refusal: the launches could not be made again.
    """
    with tempfile.TemporaryDirectory(prefix="tunebench-") as folder:
        recording = Path(folder) / "launches"
        recording.write_bytes(pickle.dumps([astuple(launch) for launch in launches]))
        child = [sys.executable, launch_again.__file__, str(recording), str(device_index)]
        command = [program, "--tool", tool, "--error-exitcode", str(_FOUND), *child]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise Refusal(f"{tool}: no answer within {_SECONDS} s") from None
    if done.returncode == 0:
        return None
    lines = [line.removeprefix("=========").strip() for line in (done.stdout + done.stderr).splitlines()]
    telling = [line for line in lines if line and not line.startswith("COMPUTE-SANITIZER")]
    if done.returncode == _FOUND:
        return telling[0] if telling else "it found an error and does not say which"
    raise Refusal(f"{tool}: the launches could not be made again: {telling[-1] if telling else done.returncode}")
