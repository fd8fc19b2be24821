"""The judge of a file, whose code runs in other processes: the reference's in one, `ModelNew`'s in another."""

from __future__ import annotations

import contextlib
from functools import partial

from tunebench.kernels.runtime.policy import set_policy
from tunebench.studies.checking.report import Subject
from tunebench.studies.checking.request import Submission
from tunebench.studies.checking.telling import Judged, Teller, exemptions_of
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.gate.boundary.judgement import judge_contender
from tunebench.tuner.gate.boundary.sandbox import RemoteContender, RemoteSource, Sandbox
from tunebench.tuner.gate.boundary.spec import CandidateSpec, Files, ReferenceSpec
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.oracle import consult_reference
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.isolation import IsolationError, report
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import require_dtype
from tunebench.tuner.result import Verdict
from tunebench.tuner.users_code import ReportedError, described


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
        try:
            source = RemoteSource(reference, reference.open())
            original = source.model(mode)
            oracle = consult_reference(source, original, submission.accuracy)
        except (*FAILURES, IsolationError) as error:
            path = submission.reference[0]
            raise KernelFolderError(f"{path}: the reference does not run: {described(error)}") from error
        contender = RemoteContender(candidate, exemptions_of(submission.declared))
        teller.judged = Judged(source, contender, mode, oracle.cases[0].inputs)
        with contextlib.suppress(StageRefused):
            with log.stage("import"):
                try:
                    candidate.open()
                except ReportedError as error:
                    raise StageRefused(str(error)) from error
            judge_contender(log, oracle, contender, source, original.state(), mode, files.device)
    return log.verdict(oracle.tolerance)
