"""The stage that compute-sanitizer answers."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.sanitizer import (
    Inspection,
    LaunchInspection,
    nothing_to_inspect,
    why_unwatched,
)
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.result import Stage

NAME = "sanitizer"


def sanitized(harness: Harness) -> None:
    """A call on the reduced problem, under each tool."""
    harness.tell(inspection_of(harness)())


def sanitize(harness: Harness, seconds: float = math.inf) -> Stage:
    """Return the stage of a contender.

    Raises:
        OutOfTimeError: a tool has not ended within so many seconds of the call.
    """
    log, ends = StageLog(), time.monotonic() + seconds
    with contextlib.suppress(StageRefused), log.stage(NAME) as details:
        inspection = inspection_of(harness)
        if isinstance(inspection, LaunchInspection):
            inspection = replace(inspection, ends=ends)
        details.extend(inspection())
    (stage,) = log.verdict(0.0).stages
    return stage


def inspection_of(harness: Harness) -> Inspection:
    """Return what is to be watched of a contender.

    Raises:
        StageRefused: its module cannot be made or called.
    """
    if why := why_unwatched(harness.device.type):
        return nothing_to_inspect(why)
    pair = harness.pair()
    with harness.refusing("a call to be watched"), torch.no_grad():
        return harness.contender.inspection(pair.candidate, pair.source, pair.mode)


def inspection_or_refusal(harness: Harness) -> Inspection:
    """Return what is to be watched of a contender; where nothing can be, what raises the refusal when it is called."""
    try:
        return inspection_of(harness)
    except StageRefused as refusal:
        return partial(_raise, refusal)


def _raise(refusal: StageRefused) -> Sequence[str]:
    raise refusal
