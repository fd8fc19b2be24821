"""NVIDIA's compute-sanitizer: accesses out of bounds, and races in shared memory.

Launches of kernels that were compiled here are recorded from a call on small inputs and made again by a process that
imports nothing heavy, each buffer an allocation of its own, so that an access beyond its end is one into nothing.
"""

from __future__ import annotations

import math
import pickle
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass

from tunebench.tuner.command import find_cuda_program, run_command
from tunebench.tuner.errors import OutOfTimeError
from tunebench.tuner.gate import launch_again
from tunebench.tuner.gate.launches import MOST_BYTES, Launch
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.result import NOT_ASKED
from tunebench.tuner.scratch import scratch

TOOLS: Mapping[str, tuple[str, ...]] = {"memcheck": ("--padding", str(1 << 20)), "racecheck": ()}
"""Each tool with its own options. Padding is unused memory behind every buffer: without it, an access beyond the end of
one buffer may fall into the next one, where memcheck sees nothing wrong."""

FOUND = 86
"""The exit code that the sanitizer is asked for when it has found something."""

_SECONDS = 120
_RULE = "========="  # in front of every line of the sanitizer's
_FINDING = re.compile(r"(Error: Race reported|Invalid|Misaligned|Malformed|Barrier error|Uninitialized)")
_MOST_TOLD = 400
_LIBRARIES = re.compile(r"\b(at|c10|cub|thrust|cutlass|cublas\w*|cudnn\w*|cufft\w*)::|cublas|cudnn|cutlass|cufft")
"""In the names of kernels that torch and NVIDIA's libraries bring."""


Inspection = Callable[[], Sequence[str]]
"""Has something watched under each tool; returns what was asked and what was not. It raises `StageRefused` where a tool
has found something."""

NOT_INSTALLED = "compute-sanitizer is not installed, so neither memcheck nor racecheck was run"


def nothing_to_inspect(why: str) -> Inspection:
    """Return the inspection of a contender of which nothing can be watched; `why` is for people."""
    return lambda: [f"{NOT_ASKED}: {why}"]


class _NoRoomError(Exception):
    """The device has no memory left to make launches again."""


@dataclass(frozen=True)
class LaunchInspection:
    """Recorded launches, as an `Inspection`.

    Attributes:
        launches: of one call.
        bulk_copies: entry points that racecheck is not asked about (see `Kernel.bulk_copies`).
        ends: `time.monotonic()` by which it has to be over.
    """

    device_index: int
    launches: tuple[Launch, ...]
    bulk_copies: tuple[str, ...] = ()
    ends: float = math.inf

    def __call__(self) -> list[str]:
        """Make the launches again under each tool, both at once.

        Raises:
            OutOfTimeError: that was not over in time.
            StageRefused: a tool has found something.
        """
        asked = {tool: [launch for launch in self.launches if self._concerns(tool, launch)] for tool in TOOLS}
        exempt = sorted({launch.entry_point for launch in self.launches if not self._concerns("racecheck", launch)})
        with ThreadPoolExecutor(len(TOOLS)) as pool:
            runs = {tool: pool.submit(self._made_again, tool, asked[tool]) for tool in TOOLS}
        has_room = True
        for tool, run in runs.items():
            try:
                if (finding := run.result()) is not None:
                    raise StageRefused(f"{tool}: {finding}")
            except _NoRoomError:
                has_room = False
        if not has_room:
            return [f"{NOT_ASKED}: the device has no memory left to make the launches again"]
        notes = [f"{sum(map(bool, asked.values()))} cases"]
        if exempt:
            notes.append(f"racecheck passed over {', '.join(exempt)}: it does not know the barriers of bulk copies")
        if any(len(held) < size for launch in self.launches for held, size in launch.buffers):
            notes.append(f"numbers beyond the first {MOST_BYTES >> 20} MiB of a tensor were those before them again")
        return notes

    def _concerns(self, tool: str, launch: Launch) -> bool:
        return tool != "racecheck" or launch.entry_point not in self.bulk_copies

    def _made_again(self, tool: str, launches: Sequence[Launch]) -> str | None:
        """Return what a tool finds in these launches, in one line; None where it finds nothing or there are none.

        Raises:
            OutOfTimeError: that was not over in time.
            StageRefused: the launches could not be made again.
        """
        if not launches:
            return None
        with scratch() as folder:
            recording = folder / "launches"
            recording.write_bytes(pickle.dumps([astuple(launch) for launch in launches]))
            child = [sys.executable, launch_again.__file__, str(recording), str(self.device_index)]
            left = max(0.0, self.ends - time.monotonic())
            ended = run_command([*command_of(tool), *child], min(_SECONDS, left))
        if ended.code == 0:
            return None
        if ended.code == launch_again.NO_ROOM:
            raise _NoRoomError
        if ended.code is None and left < _SECONDS:
            raise OutOfTimeError(f"{tool} was not over in time")
        if ended.code is None:
            raise StageRefused(f"{tool}: no answer within {_SECONDS} s")
        if ended.code == FOUND:
            return next(iter(findings_in(ended.log)), f"it found an error and names none: {last_line(ended.log)}")
        raise StageRefused(f"{tool}: the launches could not be made again: {last_line(ended.log) or ended.code}")


def find_sanitizer() -> str | None:
    """The compute-sanitizer on the path or beside the CUDA toolkit, None where there is none."""
    return find_cuda_program("compute-sanitizer")


def why_unwatched(device_type: str) -> str:
    """Return why nothing on a device of torch's type can be watched; empty where it can."""
    if device_type != "cuda":
        return "asked on CUDA devices only"
    return "" if find_sanitizer() else NOT_INSTALLED


def command_of(tool: str) -> list[str]:
    """The command that runs another under a tool, which exits with `FOUND` where it finds something."""
    program = find_sanitizer() or "compute-sanitizer"
    return [program, "--tool", tool, *TOOLS[tool], "--error-exitcode", str(FOUND)]


def findings_in(report: str) -> list[str]:
    """Return a report's findings, a line each: the error, the kernel with its address or line, what was accessed."""
    found: list[str] = []
    goes_on = False
    for line in _lines(report):
        if _FINDING.match(line):
            found.append(line)
            goes_on = True
        elif goes_on and re.match(r"(at|by thread|and|Access|Address) ", line):
            found[-1] += f" {line}" if line.startswith(("at", "and")) else f", {line}"
        else:
            goes_on = False
    return [one[:_MOST_TOLD] for one in found]


def is_of_a_library(finding: str) -> bool:
    """Whether a finding is about a kernel of torch's or of one of NVIDIA's libraries."""
    return _LIBRARIES.search(finding) is not None


def last_line(report: str) -> str:
    """The last line of a report that says something."""
    return next((line for line in reversed(_lines(report)) if line), "")


def _lines(report: str) -> list[str]:
    return [line.removeprefix(_RULE).strip() for line in report.splitlines()]
