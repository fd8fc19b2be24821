"""The judge's part: the gate's questions to a file's model in its sandbox, and what is made of the answers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.gate.battery import DEATH_AS_DROP_IN, Depth, claim_of
from tunebench.tuner.gate.boundary.sandbox import ReferenceSandboxError, RemoteContender, RemoteSource, SandboxError
from tunebench.tuner.gate.harness import Answers
from tunebench.tuner.gate.judgement import both_batteries, model_made, refusals_kept
from tunebench.tuner.gate.oracle import Oracle
from tunebench.tuner.gate.refusal import Claim
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.kernel import Mode
from tunebench.tuner.users_code import described

_MOST_SHOWN = 4


def judge_contender(
    log: StageLog,
    oracle: Oracle,
    contender: RemoteContender,
    source: RemoteSource,
    state: Mapping[str, torch.Tensor],
    mode: Mode,
    device: torch.device,
    *,
    claim: Claim = Claim.DROP_IN,
    depth: Depth = Depth.EVERYTHING,
) -> None:
    """Put a file's model through the gate; `log` has every stage.

    A process may die long after memory was overwritten, of a question that has nothing to do with it. Where it has been
    asked about more than the problem, another one is asked about the problem alone.

    Args:
        state: the reference's weights.
        claim, depth: what is asked, see `run_battery`.

    Raises:
        KernelFolderError: the reference's process is gone, which says nothing of the model.
    """
    try:
        with refusals_kept(log, described):
            model = model_made(log, lambda: contender.model(source, mode, state), described)
            answers = Answers(source, oracle, device, mode)
            both_batteries(log, model, contender, oracle, answers, depth=depth, claim=claim)
        judge_state(log, oracle, contender, source)
    except ReferenceSandboxError as error:
        raise KernelFolderError(f"the reference's process: {error}, {log.until}") from error
    except SandboxError as error:
        until, name = log.until, "process"
        if any(claim_of(stage) is Claim.DROP_IN for stage in log.begun):
            anew = StageLog()
            with contextlib.suppress(StageRefused), contender.renewed(anew) as renewed:
                judge_contender(anew, oracle, renewed, source, state, mode, device, claim=Claim.PROBLEM, depth=depth)
            if anew.verdict(0.0).passed:
                name = DEATH_AS_DROP_IN
        with contextlib.suppress(StageRefused), log.stage(name):
            raise StageRefused(f"{error}, {until}") from error


def judge_state(log: StageLog, oracle: Oracle, contender: RemoteContender, source: RemoteSource) -> None:
    """Refuse a file that has changed its process for all of its code, or draws where the reference draws nothing.

    Raises:
        SandboxError: a process is gone.
    """
    with contextlib.suppress(StageRefused), log.stage("state"):
        found = contender.sandbox.changes()
        changes = list(found.changed)
        if found.draws and not (source.sandbox.changes().draws or any(case.draws for case in oracle.cases)):
            changes.append("a call draws random numbers, and the reference's draws none")
        if changes:
            more = f"; and {len(changes) - _MOST_SHOWN} more" if len(changes) > _MOST_SHOWN else ""
            raise StageRefused(f"it changes its process for all other code: {'; '.join(changes[:_MOST_SHOWN])}{more}")
