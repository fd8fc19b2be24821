"""The judge of a file, whose code runs in other processes: the reference's in one, `ModelNew`'s in another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

from tunebench.kernels.runtime.policy import set_policy
from tunebench.studies.checking.report import Subject
from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.checking.submissions import TextFile
from tunebench.studies.checking.telling import Teller, exemptions_of
from tunebench.tuner.device import find_device
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.battery import Lane
from tunebench.tuner.gate.boundary.box import Box
from tunebench.tuner.gate.boundary.inspection import watched
from tunebench.tuner.gate.boundary.remembering import Remembering
from tunebench.tuner.gate.boundary.sandbox import RemoteContender, RemoteSource, Sandbox, boxed
from tunebench.tuner.gate.boundary.spec import Files
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.examine import examine, reference_runs
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.sanitizer import why_unwatched
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.isolation import report
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.reference import require_dtype
from tunebench.tuner.result import Verdict

_Reference = tuple[Files, Sandbox, str]
"""Files with the walls that hold, the reference's process, and what is said of its box."""

_kept: tuple[Files, Remembering, str] | None = None


def verdict_on_file(
    request: CheckRequest,
    mode: Mode,
    original: TextFile,
    other: TextFile | None = None,
    *,
    keeps_reference: bool = False,
    side_by_side: bool = False,
) -> Verdict:
    """The verdict; what is asked and found is told to the process that asked (see `Teller`).

    Args:
        original: path and text of the file with the reference.
        other: of that with `ModelNew`; None where it is the same.
        keeps_reference: this process judges nothing but files beside this reference, whose answers serve all of them.
        side_by_side: nothing else is checked meanwhile, so that a lane runs some of the stages.

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
    exemptions = exemptions_of(request.declared)
    with contextlib.ExitStack() as stack:
        files, reference, box = stack.enter_context(_reference_of(files, request.box, keeps=keeps_reference))
        report(replace(subject, box=box))
        inspect = None
        if side_by_side and not why_unwatched(device.torch_device.type):
            inspect = stack.enter_context(watched(files.contender))
        candidate = stack.enter_context(Sandbox(files.contender))
        lane_of = _lane(stack, files, exemptions) if side_by_side else None
        with reference_runs(original[0]):
            source = RemoteSource(reference, reference.open())
            answers = Answers.consult(source, mode, accuracy, draw=Draw(request.seed or 0))
        contender = RemoteContender(candidate, exemptions, inspect)
        lane = None if lane_of is None else stack.enter_context(closing(lane_of(answers)))
        teller.judged = answers, contender
        with contextlib.suppress(StageRefused):
            contender.open(log)
            examine(answers, contender, log, lane=lane)
    return log.verdict(answers.oracle.tolerance)


def _lane(stack: contextlib.ExitStack, files: Files, exemptions: Exemptions) -> Callable[[Answers], Lane]:
    """Begin the processes of a lane, in which both files are run once more; return what makes it of the answers."""
    reference = stack.enter_context(Sandbox(files.original))
    candidate = stack.enter_context(Sandbox(replace(files.contender, is_traced=True)))

    def make(answers: Answers) -> tuple[Answers, RemoteContender]:
        source = RemoteSource(reference, reference.open())
        candidate.open()
        return answers.beside(source), RemoteContender(candidate, exemptions)

    def kill() -> None:
        reference.kill()
        candidate.kill()

    return lambda answers: Lane(partial(make, answers), kill)


@contextlib.contextmanager
def _reference_of(files: Files, box: Box, *, keeps: bool) -> Iterator[_Reference]:
    """Yield a reference that ends with the block, or the one that is kept until this process ends."""
    global _kept  # noqa: PLW0603 - a process that keeps one keeps no other
    if not keeps:
        alone = boxed(files, box, Sandbox)
        with alone[1]:
            yield alone
        return
    if _kept is None:
        _kept = boxed(files, box, Remembering)
    walled, reference, told = _kept
    reference.begin()
    yield replace(walled, candidate=files.candidate), reference, told
