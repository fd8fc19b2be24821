"""The judge's side of compute-sanitizer on a whole call of a file, library kernels and extensions included.

The tool is the parent of a new process that runs the file, and its exit code is what counts: whatever the file's code
does to the report, it does not make the tool forget what it has seen. What ends before the call has, by the file's
doing or the tool's, was not asked: a file that wants to be seen by nobody has simpler ways.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from tunebench.tuner.gate.boundary import watched_call
from tunebench.tuner.gate.boundary.box import room_for
from tunebench.tuner.gate.boundary.spec import SandboxSpec
from tunebench.tuner.gate.boundary.supervisor import Supervised
from tunebench.tuner.gate.sanitizer import FOUND, TOOLS, command_of, findings_in, is_of_a_library, last_line
from tunebench.tuner.gate.sources import Sizes
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import NOT_ASKED
from tunebench.tuner.scratch import scratch

_SECONDS = 180.0  # each process of a box builds a file's extensions anew
Inspect = Callable[[Sizes, Mode], list[str]]
"""Has a call made at these sizes, in this mode, as `inspect_call` does."""

_OPTIONS = ("--target-processes", "all", "--report-api-errors", "no", "--require-cuda-init", "no")
"""Options: watch what the file starts as well, and pass over errors by which CUDA answers some of torch's questions."""

_NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Every tensor is an allocation of its own, so that an access beyond its end is one into nothing."""


_CHILD = f"import gc, sys; gc.disable(); from {watched_call.__name__} import main; gc.enable(); main(*sys.argv[1:])"
"""The program below a tool. Most of what it takes is importing torch, a sixth of that looking for garbage."""


@dataclass(frozen=True)
class _Ended:
    """How a process under a tool has ended.

    Attributes:
        code: the tool's exit code; None where it was still running at the end of its time.
        report: what the tool has written.
        told: what its process tells of the call: that it returned, or what it raised; empty where neither came.
    """

    tool: str
    code: int | None
    report: str
    told: str

    @property
    def is_clean(self) -> bool:
        """The call came to its end, and the tool saw nothing."""
        return self.code == 0 and self.told == watched_call.RETURNED and "SUMMARY: " in self.report

    @property
    def finding(self) -> str:
        """The tool's finding, in one line; empty where there is none.

        racecheck takes some barriers of libraries for none, so that what it says of their kernels does not count.
        """
        found = findings_in(self.report)
        if self.tool == "racecheck":
            if found and all(map(is_of_a_library, found)):
                return ""
            found = [one for one in found if not is_of_a_library(one)]
        if found:
            return found[0]
        return "it found an error, and its report does not say which" if self.code == FOUND else ""

    @property
    def how(self) -> str:
        """Why it is not clean, for people."""
        if self.code is None:
            return f"no answer within {_SECONDS:.0f} s"
        if self.told not in ("", watched_call.RETURNED):
            return f"the call fails: {self.told}"
        return f"the process ended with {self.code} before the call had: {last_line(self.report)}".removesuffix(": ")


def inspect_call(spec: SandboxSpec, sizes: Sizes, mode: Mode) -> list[str]:
    """Have a new process make one call of a model under each tool, both at once; see `Inspection`.

    Raises:
        StageRefused: a tool has found something.
    """
    with watched(spec) as inspect:
        return inspect(sizes, mode)


@contextlib.contextmanager
def watched(spec: SandboxSpec) -> Iterator[Inspect]:
    """Begin a process under each tool; yield what has them make their one call. They end with the block.

    The call may be known later: most of what a tool takes is the import of torch below it.
    """
    with contextlib.ExitStack() as processes:
        begun = [processes.enter_context(_begun(tool, spec)) for tool in TOOLS]

        def inspect(sizes: Sizes, mode: Mode) -> list[str]:
            for one in begun:
                one.ask((spec, sizes, mode))
            deadline = time.monotonic() + _SECONDS
            notes = [_note(one.ended(deadline)) for one in begun]
            asked = sum(not note for note in notes)
            if not asked:
                return [f"{NOT_ASKED}: {'; '.join(notes)}"]
            return [f"{asked} cases", *filter(None, notes)]

        yield inspect


def _note(ended: _Ended) -> str:
    """Why a tool was not asked; empty where it was, and found nothing."""
    if ended.finding:
        raise StageRefused(f"{ended.tool}: {ended.finding}")
    if ended.is_clean or ended.code == FOUND:
        return ""
    return f"{ended.tool}: {ended.how}"


@dataclass(frozen=True)
class _Begun:
    """A process under a tool.

    Attributes:
        question, report, told: the files that the judge, the tool and the process write.
    """

    tool: str
    process: Supervised
    question: Path
    report: Path
    told: Path

    def ask(self, call: watched_call.Call) -> None:
        """Say which call it is to make."""
        written = self.question.with_suffix(".written")
        written.write_bytes(pickle.dumps(call))
        written.rename(self.question)

    def ended(self, deadline: float) -> _Ended:
        """Wait for its end."""
        code = self.process.wait(max(0.0, deadline - time.monotonic()))
        return _Ended(self.tool, code, _text(self.report), _text(self.told)[:2000])


@contextlib.contextmanager
def _begun(tool: str, spec: SandboxSpec) -> Iterator[_Begun]:
    """Begin a process under a tool, which ends with the block."""
    with scratch() as folder:
        question, report, told = (folder / name for name in ("call", "report", "told"))
        child = [sys.executable, "-c", _CHILD, str(question), str(told)]
        command = [*command_of(tool), *_OPTIONS, "--log-file", str(report), *child]
        added = {**_NO_CACHE, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        room = None
        if spec.walls is not None:
            room = room_for(spec.walls, folder, [spec.path], is_on_gpu=True, shared=folder)
        process = Supervised(partial(_become, command=command, added=added), room)
        try:
            yield _Begun(tool, process, question, report, told)
        finally:
            process.close()


def _text(path: Path) -> str:
    return path.read_bytes()[: 1 << 20].decode(errors="replace") if path.is_file() else ""


def _become(_connection: Connection, command: Sequence[str], added: Mapping[str, str]) -> NoReturn:
    """Run a command in this process's place, with this added to its environment."""
    os.execve(command[0], list(command), {**os.environ, **added})
