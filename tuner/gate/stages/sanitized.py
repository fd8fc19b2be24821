"""The stage that compute-sanitizer answers, of one contender and of several."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
_AT_ONCE = 8
"""Contenders under the tools at a time, where each is asked about by itself."""


def sanitized(harness: Harness) -> None:
    """A call on the reduced problem, under each tool."""
    harness.tell(inspection_of(harness)())


def sanitize(harnesses: Sequence[Harness], seconds: float = math.inf) -> list[Stage]:
    """The stage of several contenders of one kernel.

    Most of what the tools take is their start, so that they are asked about all contenders in one process, and about
    each by itself only where they have found something.

    Raises:
        OutOfTimeError: a tool has not ended within so many seconds.
    """
    inspections = [inspection_or_refusal(harness) for harness in harnesses]
    inspections = [one.within(seconds) if isinstance(one, LaunchInspection) else one for one in inspections]
    watched = [inspection for inspection in inspections if isinstance(inspection, LaunchInspection)]
    if len(watched) > 1 and (together := _stage(watched[0].with_those_of(watched[1:]))).passed:
        return [together if inspection in watched else _stage(inspection) for inspection in inspections]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(_stage, inspections))


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


def _stage(inspection: Inspection) -> Stage:
    log = StageLog()
    with contextlib.suppress(StageRefused), log.stage(NAME) as details:
        details.extend(inspection())
    (stage,) = log.verdict(0.0).stages
    return stage
