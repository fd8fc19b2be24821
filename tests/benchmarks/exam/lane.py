"""A process of the exam, which examines one problem after another."""

from __future__ import annotations

import os
import queue
import time
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import Any

from tests.benchmarks.exam.measure import Budget, environment, examine, values_of
from tests.benchmarks.exam.problems import ExamProblem

from tunebench.studies.checking.bench import Ceilings

_WAIT_SECONDS = 1.0
_LEAST_SECONDS = 40.0
"""What a problem takes: with less time left, none is begun."""


@dataclass(frozen=True)
class Lane:
    """A process of the exam is told this.

    Attributes:
        number: of the lane.
        visible: the GPU, as `CUDA_VISIBLE_DEVICES` names it; None for a CPU.
        cores: of the processor, for its builds.
        folder: of its results and caches.
        ends: by `time.time()`: when nothing more is begun.
    """

    number: int
    visible: str | None
    cores: int
    folder: Path
    budget: Budget
    checkout: Path | None
    ceilings: Ceilings
    ends: float


def run_lane(lane: Lane, turn: Lock, waiting: Queue[ExamProblem], done: Queue[dict[str, Any]]) -> None:
    """Examine problems, one after another, in a process that sees one GPU and uses it in its turn."""
    os.environ.update(environment(lane.folder, lane.number, lane.cores))
    device = "cpu" if lane.visible is None else None
    if lane.visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = lane.visible
    while time.time() + _LEAST_SECONDS < lane.ends:
        try:
            problem = waiting.get(timeout=_WAIT_SECONDS)
        except queue.Empty:
            return
        done.put(values_of(examine(problem, lane.budget, device, lane.checkout, lane.ceilings, turn)))
