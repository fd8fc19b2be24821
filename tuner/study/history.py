"""The identity of a study, and the interface through which its trials are recorded, whatever the database."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tunebench.tuner.build import CompilerName
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.problem import Objective, Problem
from tunebench.tuner.result import Comparison, Stage, TrialResult, TrialStatus


@dataclass(frozen=True)
class StudyDescription:
    """The identity of a study: running it again goes on where it ended.

    Attributes:
        source_digest: digest of the kernel's `.cu`, headers and Python side; results of an edited kernel are not mixed.
        space_digest: digest of the tunables' values, so that a restricted study is a study of its own.
    """

    kernel: str
    source_digest: str
    space_digest: str
    problem: Problem
    device: Device
    compiler: CompilerName
    sampler: str
    seed: int


@dataclass(frozen=True)
class PastTrial:
    """The facts that the search needs of a trial that is over.

    Attributes:
        median_ms, clock: None where the trial has no measurement.
        energy_mj: of one call; None where it was not measured.
    """

    number: int
    configuration: Configuration
    status: TrialStatus
    median_ms: float | None
    clock: str | None = None
    energy_mj: float | None = None

    def cost(self, objective: Objective) -> float:
        """Return what a study minimises; infinite without a measurement."""
        return math.inf if self.median_ms is None else objective.cost(self.median_ms, self.energy_mj)

    @classmethod
    def of(cls, number: int, result: TrialResult) -> PastTrial:
        """A trial's result, as the search sees it."""
        measured = result.measurement
        return cls(
            number,
            result.configuration,
            result.status,
            measured.median_ms if measured else None,
            measured.clock if measured else None,
            measured.energy_mj if measured else None,
        )

    def refused(self) -> PastTrial:
        """The same once a later stage has refused it."""
        return replace(self, status=TrialStatus.CORRECTNESS, median_ms=None, clock=None, energy_mj=None)


class TrialLog(Protocol):
    """Where one study's trials are kept. Every call is one transaction: it has happened entirely, or not at all.

    Several processes may record trials of one study at the same time. A trial that was refused late has the status
    `correctness` here: see `TrialResult.refused_late`.
    """

    def past(self, after: int = -1) -> Sequence[PastTrial]:
        """The study's trials so far with a number above this one, by number."""

    def result(self, number: int) -> TrialResult:
        """Return the result of one of them, its build apart."""

    def claim(self, configuration: Configuration) -> bool:
        """Take a configuration for this process, until it is recorded, or released, or the process ends.

        False where another process is at it, or has recorded it.
        """

    def release(self) -> None:
        """Let go of every configuration that is claimed and not recorded."""

    def record(self, result: TrialResult) -> int | None:
        """Add a trial and give it the next number; None, and nothing is added, where its configuration has one."""

    def refuse(self, number: int, stage: Stage) -> None:
        """Take back a correct trial, because a later stage has refused it."""

    def conclude(self, comparison: Comparison) -> None:
        """Add the interleaved comparison that ends the study."""
