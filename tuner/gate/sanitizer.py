"""NVIDIA's compute-sanitizer on the launches of one call: accesses out of bounds, and races in shared memory.

The launches are recorded from a call on small inputs and made again by a process that imports nothing heavy, each
buffer an allocation of its own, so that an access beyond its end is one into nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace

import torch

from tunebench.tuner.gate import launch_again
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.launches import Launch
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.result import NOT_ASKED, Stage
from tunebench.tuner.scratch import scratch

NAME = "sanitizer"
TOOLS: Mapping[str, tuple[str, ...]] = {"memcheck": ("--padding", str(1 << 20)), "racecheck": ()}
"""Each tool with its own options. Padding is unused memory behind every buffer: without it, an access beyond the end of
one buffer may fall into the next one, where memcheck sees nothing wrong."""
AT_ONCE = 8
"""Contenders under the tools at a time, where each is asked about by itself."""

NOT_INSTALLED = f"{NOT_ASKED}: compute-sanitizer is not installed, so neither memcheck nor racecheck was run"

_SECONDS = 120
_FOUND = 86  # the exit code that the sanitizer is asked for when it has found something


@dataclass(frozen=True)
class Inspection:
    """What compute-sanitizer is to watch.

    Attributes:
        launches: of one call; none where there is nothing to watch.
        bulk_copies: entry points that racecheck is not asked about (see `Kernel.bulk_copies`).
        why_not: why there is nothing to watch.
    """

    device_index: int
    launches: tuple[Launch, ...] = ()
    bulk_copies: tuple[str, ...] = ()
    why_not: str = ""

    def run(self) -> list[str]:
        """Make the launches again under each tool, both at once; what was asked and what was not.

        Raises:
            StageRefused: a tool has found something.
        """
        program = find_sanitizer()
        if self.why_not or program is None:
            return [self.why_not or NOT_INSTALLED]
        asked = {tool: [launch for launch in self.launches if self._concerns(tool, launch)] for tool in TOOLS}
        exempt = sorted({launch.entry_point for launch in self.launches if not self._concerns("racecheck", launch)})
        with ThreadPoolExecutor(len(TOOLS)) as pool:
            runs = {tool: pool.submit(run_tool, program, tool, asked[tool], self.device_index) for tool in TOOLS}
        for tool, run in runs.items():
            if (finding := run.result()) is not None:
                raise StageRefused(f"{tool}: {finding}")
        notes = [f"{sum(map(bool, asked.values()))} cases"]
        if exempt:
            notes.append(f"racecheck passed over {', '.join(exempt)}: it does not know the barriers of bulk copies")
        return notes

    def with_those_of(self, others: Iterable[Inspection]) -> Inspection:
        """These launches and then others of the same kernel on the same device."""
        return replace(self, launches=sum((other.launches for other in others), self.launches))

    def _concerns(self, tool: str, launch: Launch) -> bool:
        return tool != "racecheck" or launch.entry_point not in self.bulk_copies


def inspection_of(harness: Harness) -> Inspection:
    """The launches of a call on the reduced problem.

    Raises:
        StageRefused: the contender's module cannot be made or called.
    """
    index = harness.device.index or 0
    if harness.device.type != "cuda":
        return Inspection(index, why_not=f"{NOT_ASKED}: asked on CUDA devices only")
    if find_sanitizer() is None:
        return Inspection(index, why_not=NOT_INSTALLED)
    pair = harness.pair()
    with harness.refusing("a call to be watched"), torch.no_grad():
        launches = harness.contender.launches(pair.candidate, pair.inputs(1))
    if not launches:
        return Inspection(index, why_not=f"{NOT_ASKED}: no launch of a kernel that was compiled here")
    return Inspection(index, tuple(launches), harness.contender.exemptions.bulk_copies)


def sanitized(harness: Harness) -> None:
    """Every launch of a call on the reduced problem, under each tool."""
    harness.tell(inspection_of(harness).run())


def sanitize(harnesses: Sequence[Harness]) -> list[Stage]:
    """The stage `sanitizer` of several contenders of one kernel.

    Most of what the tools take is their start, so that they are asked about all contenders in one process, and about
    each by itself only where they have found something.
    """
    inspections = [_inspection_or_stage(harness) for harness in harnesses]
    watched = [inspection for inspection in inspections if isinstance(inspection, Inspection) and inspection.launches]
    if len(watched) > 1 and (together := _stage(watched[0].with_those_of(watched[1:]))).passed:
        return [together if inspection in watched else _stage(inspection) for inspection in inspections]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(_stage, inspections))


def _inspection_or_stage(harness: Harness) -> Inspection | Stage:
    try:
        return inspection_of(harness)
    except StageRefused as refusal:
        return Stage(NAME, False, 0.0, str(refusal))


def _stage(outcome: Inspection | Stage) -> Stage:
    if isinstance(outcome, Stage):
        return outcome
    log = StageLog()
    with contextlib.suppress(StageRefused), log.stage(NAME) as details:
        details.extend(outcome.run())
    (stage,) = log.verdict(0.0).stages
    return stage


def find_sanitizer() -> str | None:
    """The compute-sanitizer on the path or beside the CUDA toolkit, None where there is none."""
    found = shutil.which("compute-sanitizer")
    folder = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return found or shutil.which(f"{folder}/bin/compute-sanitizer")


def run_tool(program: str, tool: str, launches: Sequence[Launch], device_index: int) -> str | None:
    """What a tool finds in these launches, in one line; None where it finds nothing or there are none.

    Raises:
        StageRefused: the launches could not be made again.
    """
    if not launches:
        return None
    with scratch() as folder:
        recording = folder / "launches"
        recording.write_bytes(pickle.dumps([astuple(launch) for launch in launches]))
        child = [sys.executable, launch_again.__file__, str(recording), str(device_index)]
        command = [program, "--tool", tool, *TOOLS[tool], "--error-exitcode", str(_FOUND), *child]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise StageRefused(f"{tool}: no answer within {_SECONDS} s") from None
    if done.returncode == 0:
        return None
    lines = [
        line.removeprefix("=========").strip()
        for line in (done.stdout + done.stderr).decode(errors="replace").splitlines()
    ]
    telling = [line for line in lines if line and not line.startswith("COMPUTE-SANITIZER")]
    if done.returncode == _FOUND:
        return telling[0] if telling else "it found an error and does not say which"
    raise StageRefused(f"{tool}: the launches could not be made again: {telling[-1] if telling else done.returncode}")
