"""The gate's questions to a file without the boundary: many files in one process, each in a fork of it.

So the batteries are tried in a tenth of the time. What a hostile file does, and what it changes of its process, is
nothing that can be asked here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - once for all forks
from tests.gate_files.entry import GateFile
from tests.tuner.gate.in_process import CPU, ModuleContender

from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.battery import claim_of
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.examine import examine
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.refusal import Claim
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import load_candidate, load_reference

_SECONDS = 120.0


def report_here(file: GateFile, folder: Path, draw: Draw) -> Mapping[str, Any]:
    """What `check --json` reports of a file, as far as it is asked here."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        with contextlib.suppress(BaseException):
            os.write(writing, json.dumps(_report(file, folder, draw)).encode())
            os._exit(0)
        traceback.print_exc()
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        if not select.select([answer], [], [], _SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
        told = answer.read()
    _, status = os.waitpid(child, 0)
    if told:
        report: Mapping[str, Any] = json.loads(told)
        return report
    detail = f"the process ended with {os.waitstatus_to_exitcode(status)}"
    return _verdicts([{"name": "process", "passed": False, "seconds": 0.0, "detail": detail}])


def _report(file: GateFile, folder: Path, draw: Draw) -> Mapping[str, Any]:
    source = Source(load_reference(folder / "reference.py", text=file.reference), CPU)
    answers = Answers.consult(source, Mode.TRAIN, draw=draw)
    factory = load_candidate(folder / "submission.py", file.text)
    contender = ModuleContender(factory, _exemptions(file))
    verdict = examine(answers, contender, StageLog())
    return _verdicts(list(map(asdict, verdict.stages)), verdict.unshown)


def _exemptions(file: GateFile) -> Exemptions:
    return Exemptions(**{flag.removeprefix("--").replace("-", "_"): True for flag in file.flags})


def _verdicts(stages: list[dict[str, Any]], unshown: str = "") -> Mapping[str, Any]:
    refused = [claim_of(stage["name"]) for stage in stages if not stage["passed"]]
    return {
        "right_for_problem": Claim.PROBLEM not in refused,
        "drop_in": not (refused or unshown),
        "stages": stages,
    }
