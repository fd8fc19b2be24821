"""One run of the gate on one model: both batteries, and what becomes of errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from tunebench.tuner.gate.battery import Depth, run_battery
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Answers
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.oracle import Oracle
from tunebench.tuner.gate.quick import Prepare, QuickGate
from tunebench.tuner.gate.refusal import Claim
from tunebench.tuner.gate.stage_log import StageLog, StageRefused

Made = TypeVar("Made")


def model_made(log: StageLog, make: Callable[[], Made], told: Callable[[BaseException], str]) -> Made:
    """The contender's model, made in a stage `model`.

    Args:
        told: an exception in one line.

    Raises:
        StageRefused: it cannot be made.
    """
    with log.stage("model"):
        try:
            return make()
        except FAILURES as error:
            raise StageRefused(f"it cannot be made like the reference: {told(error)}") from error


def both_batteries(
    log: StageLog,
    model: Model,
    contender: Contender,
    oracle: Oracle,
    answers: Answers,
    prepare: Prepare = lambda _: None,
    *,
    depth: Depth = Depth.EVERYTHING,
    claim: Claim = Claim.DROP_IN,
) -> None:
    """The quick battery, and where it passes the full one to its end.

    Args:
        model: the contender's model at the problem's own sizes, with the reference's weights.
        depth, claim: see `run_battery`.
    """
    if QuickGate(model, oracle, contender.exemptions).check(prepare, log).passed:
        run_battery(answers, contender, log, depth, claim=claim, keep_going=True)


@contextlib.contextmanager
def refusals_kept(log: StageLog, told: Callable[[BaseException], str]) -> Iterator[None]:
    """A refusal ends the block, and what the model raises is one, of a stage `run`; the log has it.

    Args:
        told: an exception in one line.
    """
    try:
        yield
    except StageRefused:
        pass  # the log has it
    except FAILURES as error:
        with contextlib.suppress(StageRefused), log.stage("run"):
            raise StageRefused(told(error)) from error
