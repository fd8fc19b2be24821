"""The judge of a file, whose code runs in other processes: the reference's in one, `ModelNew`'s in another."""

from __future__ import annotations

import contextlib
from functools import partial

from tunebench.kernels.runtime.policy import set_policy
from tunebench.studies.checking.report import Subject
from tunebench.studies.checking.request import Submission
from tunebench.studies.checking.telling import Teller, exemptions_of
from tunebench.tuner.device import find_device
from tunebench.tuner.gate.boundary.sandbox import RemoteContender, RemoteSource, Sandbox
from tunebench.tuner.gate.boundary.spec import CandidateSpec, Files, ReferenceSpec
from tunebench.tuner.gate.examine import examine, reference_runs
from tunebench.tuner.gate.harness import Answers
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.isolation import report
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import require_dtype
from tunebench.tuner.result import Verdict


def verdict_on_file(submission: Submission, mode: Mode) -> Verdict:
    """The verdict; what is asked and found is told to the process that asked (see `Teller`).

    Raises:
        UserError: the device is not here, the dtype is none, or the reference does not run.
        IsolationError: a process is gone.
    """
    device = find_device(submission.device)
    report(Subject(device.name, str(device.torch_device), None, tuple(submission.declared)))
    files = Files(
        submission.reference,
        submission.candidate,
        dict(submission.sizes),
        require_dtype(submission.dtype),
        device.torch_device,
        prepare=partial(set_policy, wait=True),  # what is checked is the kernel, whenever it was built
        settings=submission.settings,
    )
    teller = Teller(report)
    log = StageLog(teller)
    with Sandbox(ReferenceSpec(files)) as reference, Sandbox(CandidateSpec(files)) as candidate:
        with reference_runs(submission.reference[0]):
            answers = Answers.consult(RemoteSource(reference, reference.open()), mode, submission.accuracy)
        contender = RemoteContender(candidate, exemptions_of(submission.declared))
        teller.judged = answers, contender
        with contextlib.suppress(StageRefused):
            contender.open(log)
            examine(answers, contender, log)
    return log.verdict(answers.oracle.tolerance)
