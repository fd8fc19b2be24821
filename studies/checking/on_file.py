"""The judge of a file, whose code runs in other processes: the reference's in one, `ModelNew`'s in another."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path

from tunebench.kernels.runtime.policy import set_policy
from tunebench.studies.checking.report import Subject
from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.checking.telling import Teller, exemptions_of
from tunebench.tuner.device import find_device
from tunebench.tuner.gate.boundary.sandbox import RemoteContender, RemoteSource, Sandbox, boxed
from tunebench.tuner.gate.boundary.spec import Files
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.examine import examine, reference_runs
from tunebench.tuner.gate.harness import Answers
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.isolation import report
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.reference import require_dtype
from tunebench.tuner.result import Verdict


def verdict_on_file(
    request: CheckRequest, mode: Mode, original: tuple[Path, str], other: tuple[Path, str] | None = None
) -> Verdict:
    """The verdict; what is asked and found is told to the process that asked (see `Teller`).

    Args:
        original: path and text of the file with the reference.
        other: of that with `ModelNew`; None where it is the same.

    Raises:
        UserError: the device is not here, the dtype is none, or the reference does not run.
        IsolationError: a process is gone.
    """
    device = find_device(request.device)
    subject = Subject(device.name, str(device.torch_device), None, tuple(request.declared))
    report(subject)
    files = Files(
        original,
        other,
        dict(request.sizes),
        require_dtype(request.dtype),
        device.torch_device,
        prepare=partial(set_policy, wait=True),  # what is checked is the kernel, whenever it was built
        settings=request.settings or {},
    )
    teller, accuracy = Teller(report), Accuracy.under(files.settings, request.accuracy)
    log = StageLog(teller)
    files, reference, box = boxed(files, request.box)
    report(replace(subject, box=box))
    with reference, Sandbox(files.contender) as candidate:
        with reference_runs(original[0]):
            source = RemoteSource(reference, reference.open())
            answers = Answers.consult(source, mode, accuracy, draw=Draw(request.seed or 0))
        contender = RemoteContender(candidate, exemptions_of(request.declared))
        teller.judged = answers, contender
        with contextlib.suppress(StageRefused):
            contender.open(log)
            examine(answers, contender, log)
    return log.verdict(answers.oracle.tolerance)
