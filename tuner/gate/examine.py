"""One examination of a candidate beside its reference, in this process or across the boundary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tunebench.tuner.errors import CompileError, KernelFolderError
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.battery import DEATH_AS_DROP_IN, Depth, Lane, claim_of, run_battery
from tunebench.tuner.gate.boundary.sandbox import ReferenceSandboxError, RemoteContender, RemoteSource, SandboxError
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.faults import FAILURES, require_models_own
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.quick import QuickGate
from tunebench.tuner.gate.refusal import Claim
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.isolation import IsolationError
from tunebench.tuner.result import Verdict
from tunebench.tuner.users_code import ReportedError, described

Made = TypeVar("Made")
Describe = Callable[[BaseException], str]
"""Puts an exception into one line."""

_MOST_SHOWN = 4


def examine(
    answers: Answers,
    contender: Contender,
    log: StageLog,
    model: Model | None = None,
    *,
    claim: Claim = Claim.DROP_IN,
    depth: Depth | None = Depth.EVERYTHING,
    describe: Describe = described,
    lane: Lane | None = None,
) -> Verdict:
    """Put a candidate through the gate; `log` has every stage.

    A process may die long after memory was overwritten, of a question that has nothing to do with it. Where it has been
    asked about more than the problem, another one is asked about the problem alone.

    Args:
        model: the candidate's at the problem's own sizes, with the reference's weights; None to have it made.
        claim, depth, lane: which stages of the full battery are run, and where, see `run_battery`; without a depth none
            is.

    Raises:
        KernelFolderError: the reference's process is gone, which says nothing of the candidate.
    """
    aside: Contender | None = None
    try:
        with refusals_kept(log, describe):
            renew = None
            if model is None:
                renew = partial(contender.model, answers.source, answers.mode, answers.oracle.state)
                model = model_made(log, renew, describe)
            quick = QuickGate(model, answers.oracle, contender.exemptions, renew).check(partial(make_ready, model), log)
            if quick.passed and depth is not None:
                run_battery(answers, contender, log, depth, claim=claim, keep_going=True, lane=lane)
                aside = lane.contender if lane is not None else None
        judge_state(answers, contender, log, aside)
    except ReferenceSandboxError as error:
        raise KernelFolderError(f"the reference's process: {error}, {log.until}") from error
    except SandboxError as error:
        until, name = log.until, "process"
        if any(claim_of(stage) is Claim.DROP_IN for stage in log.begun):
            anew = StageLog()
            assert isinstance(contender, RemoteContender)
            with contextlib.suppress(StageRefused), contender.renewed(anew) as renewed:
                examine(answers, renewed, anew, claim=Claim.PROBLEM, depth=depth)
            if anew.verdict(0.0).passed:
                name = DEATH_AS_DROP_IN
        with contextlib.suppress(StageRefused), log.stage(name):
            raise StageRefused(f"{error}, {until}") from error
    return log.verdict(answers.oracle.tolerance)


@contextlib.contextmanager
def reference_runs(path: Path | None) -> Iterator[None]:
    """Raise one error for whatever the reference raises in this block.

    Args:
        path: of its file, where it has one.

    Raises:
        KernelFolderError: the reference does not run.
        InternalError: the gate's own code raised.
    """
    try:
        yield
    except (*FAILURES, IsolationError) as error:
        require_models_own(error)
        where = "" if path is None else f"{path}: "
        raise KernelFolderError(f"{where}the reference does not run: {described(error)}") from error


def model_made(log: StageLog, make: Callable[[], Made], describe: Describe) -> Made:
    """Make the candidate's model, in a stage `model`.

    Raises:
        StageRefused: it cannot be made.
    """
    with log.stage("model"):
        try:
            return make()
        except FAILURES as error:
            raise StageRefused(f"it cannot be made like the reference: {describe(error)}") from error


def make_ready(model: Model, inputs: Sequence[Any]) -> None:
    """Make a model ready for a call.

    Raises:
        StageRefused: it cannot serve these inputs.
    """
    try:
        reason = model.ready(inputs)
    except CompileError as error:
        raise StageRefused(f"it does not compile: {error}") from error
    if reason is not None:
        raise StageRefused(reason)


@contextlib.contextmanager
def refusals_kept(log: StageLog, describe: Describe) -> Iterator[None]:
    """End the block at a refusal; what the model raises is one, of a stage `run`; the log has it.

    Raises:
        InternalError: the gate's own code raised.
    """
    try:
        yield
    except StageRefused:
        pass  # the log has it
    except FAILURES as error:
        require_models_own(error)
        with contextlib.suppress(StageRefused), log.stage("run"):
            raise StageRefused(describe(error)) from error


def judge_state(answers: Answers, contender: Contender, log: StageLog, aside: Contender | None = None) -> None:
    """Refuse a file that has changed its process for all of its code, or draws where the reference draws nothing.

    Args:
        aside: the same in another process, where stages were run in a lane.

    Raises:
        SandboxError: a process is gone.
    """
    if not isinstance(contender, RemoteContender):
        return
    assert isinstance(answers.source, RemoteSource)
    with contextlib.suppress(StageRefused), log.stage("state"):
        try:
            found = [one.sandbox.changes() for one in (contender, aside) if isinstance(one, RemoteContender)]
        except ReportedError as error:
            raise StageRefused(f"its process cannot be asked any more: {error}") from error
        changes = list(dict.fromkeys(change for one in found for change in one.changed))
        may_draw = not any(one.draws for one in found) or any(case.draws for case in answers.oracle.cases)
        if not (may_draw or answers.source.sandbox.changes().draws):
            changes.append("a call draws random numbers, and the reference's draws none")
        if changes:
            more = f"; and {len(changes) - _MOST_SHOWN} more" if len(changes) > _MOST_SHOWN else ""
            raise StageRefused(f"it changes its process for all other code: {'; '.join(changes[:_MOST_SHOWN])}{more}")
