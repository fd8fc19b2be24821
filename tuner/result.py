"""Result of a trial, and the invariants that it keeps from the moment it is built."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tunebench.tuner.build import Build
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Work


class TrialStatus(enum.StrEnum):
    """The way a trial ended: `correct`, `pruned` (right but much too slow), or T4's words for what failed."""

    CORRECT = "correct"
    PRUNED = "pruned"
    CONSTRAINTS = "constraints"
    COMPILE = "compile"
    RUNTIME = "runtime"
    CORRECTNESS = "correctness"
    TIMEOUT = "timeout"

    @property
    def timed(self) -> bool:
        """Whether such a trial has a measurement."""
        return self in (TrialStatus.CORRECT, TrialStatus.PRUNED)


NOT_ASKED = "not asked"
"""Prefix of a stage's detail where the stage checked nothing: the variant was not refused, and nothing is proven."""

UNSHOWN = f"{NOT_ASKED}, though it is part of the claim: "
"""The same where there was something to ask, and it could not be."""

_PASSED_OVER = " passed over: "

_NEEDED = {"gradients": ("gradients",), "sizes": ("sizes", "batches")}
"""A drop-in has each of these; one of the stages beside it has to have asked about it."""


@dataclass(frozen=True)
class Stage:
    """One step of the correctness gate.

    Attributes:
        passed: it was not refused.
        seconds: what it took.
        detail: what was found, for people.
    """

    name: str
    passed: bool
    seconds: float
    detail: str = ""

    @property
    def asked(self) -> bool:
        """Whether anything was asked; where nothing was, that it passed says nothing."""
        return not self.detail.startswith(NOT_ASKED)

    @property
    def why_not_asked(self) -> str:
        """The reason why nothing was asked; empty where something was."""
        told = self.detail.removeprefix(UNSHOWN).removeprefix(f"{NOT_ASKED}: ")
        return "" if self.asked else told.partition("; ")[0]

    @property
    def is_unshown(self) -> bool:
        """Whether there was something to ask, and it could not be."""
        return self.detail.startswith(UNSHOWN)

    @property
    def passed_over(self) -> tuple[str, ...]:
        """The cases that were passed over beside others that were asked, each with its count and the reason."""
        return tuple(part for part in self.detail.split("; ") if _PASSED_OVER in part) if self.passed else ()


@dataclass(frozen=True)
class ErrorFigures:
    """The error of an output against the float64 reference; the worst over all outputs and cases.

    Attributes:
        max_absolute: largest |output − reference|.
        max_relative: the same divided by the size of the output (the RMS of its row, see `gate.comparison.scale_of`).
        relative_norm: ‖output − reference‖ / ‖reference‖.
        reference_max_relative, reference_relative_norm: the same for the reference model at its own precision.
        first_wrong_index: flat index of the first element outside the tolerance; None where there is none.
        untouched: elements the kernel never wrote.
    """

    max_absolute: float
    max_relative: float
    relative_norm: float
    reference_max_relative: float
    reference_relative_norm: float
    first_wrong_index: int | None = None
    untouched: int = 0

    @property
    def multiple_of_reference(self) -> float:
        """`max_relative` over the reference's own; infinite where the reference is exact and this is not."""
        return _multiple(self.max_relative, self.reference_max_relative)

    @property
    def rms_multiple_of_reference(self) -> float:
        """`relative_norm` over the reference's own; infinite where the reference is exact and this is not."""
        return _multiple(self.relative_norm, self.reference_relative_norm)


_CLEARLY = 1.1
"""The least multiple of the tolerance that another order of the same sums is not below."""
_MOST_ROUNDING = 0.02
"""The largest error that rounding makes, of the output's size: some of bfloat16's."""
_BEYOND_REFERENCE = 4.0
"""The most that any question allows, in errors of the reference."""


def _multiple(figure: float, reference: float) -> float:
    if figure == 0.0:
        return 0.0
    return figure / reference if reference else float("inf")


@dataclass(frozen=True)
class Verdict:
    """The outcome of the correctness gate.

    Attributes:
        reason: one line on the stage that refused; empty where all passed.
        tolerance: the bound on `errors.max_relative` (twice the reference's own error passes too).
        errors: None where no output could be compared.
    """

    passed: bool
    stages: tuple[Stage, ...]
    tolerance: float
    errors: ErrorFigures | None = None
    reason: str = ""

    @property
    def rounds_too_far(self) -> bool:
        """Whether it was refused for an error as rounding makes: clearly beyond the tolerance and the reference's own,
        and small beside the output.
        """
        errors = self.errors
        if self.passed or errors is None or errors.first_wrong_index is None or errors.untouched:
            return False
        is_clear = errors.max_relative >= _CLEARLY * self.tolerance
        return is_clear and errors.max_relative <= _MOST_ROUNDING and errors.multiple_of_reference > _BEYOND_REFERENCE

    def __post_init__(self) -> None:
        # Another tuner's refusal has no stages.
        if self.stages and self.passed != all(stage.passed for stage in self.stages):
            raise ValueError("a verdict passes exactly when all its stages do")
        if self.passed == bool(self.reason):
            raise ValueError("a refusal has a reason and a pass has none")

    @property
    def unshown(self) -> str:
        """The parts of being a drop-in that could not be asked about, with the reason; empty where all were."""
        stages, left = {stage.name: stage for stage in self.stages}, []
        for what, names in _NEEDED.items():
            asked = [stages[name] for name in names if name in stages]
            if not any(stage.asked for stage in asked):
                left += [f"{what} were not asked: {one.why_not_asked}" for one in asked if one.is_unshown][:1]
        return "; ".join(left)

    def refused_by(self, stage: Stage) -> Verdict:
        """Return the same with one more stage, which did not pass."""
        return replace(self, passed=False, stages=(*self.stages, stage), reason=stage.detail)


class CacheRegime(enum.StrEnum):
    """The state of the caches when a sample starts; figures of different regimes are never ranked together."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True)
class Conditions:
    """The state of the device while a time was taken; None where nothing says (a CPU has only the control call).

    Attributes:
        control_ms: what the clock's control call took, which is the same work at any time.
        sm_clock_mhz, memory_clock_mhz, temperature_c: NVML's, right after the samples.
        throttle_reasons: what held the clocks back (see `nvml.throttle_words`).
        foreign_processes: processes with a context on the device, this one apart.
    """

    control_ms: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle_reasons: str | None = None
    foreign_processes: int | None = None


@dataclass(frozen=True)
class Measurement:
    """Samples of one configuration's time and their statistics.

    Attributes:
        samples_ms: every sample in the order taken, milliseconds.
        median_ms, low_ms, high_ms: the median and its 95 % order-statistic interval.
        regime: what the caches held.
        clock: what took the time, such as `cuda-event`; times of different clocks are never ranked together.
        conditions: the state of the device.
        energy_mj: of one call, millijoules; None where it was not measured.
    """

    samples_ms: tuple[float, ...]
    median_ms: float
    low_ms: float
    high_ms: float
    regime: CacheRegime
    clock: str
    conditions: Conditions = Conditions()
    energy_mj: float | None = None

    def __post_init__(self) -> None:
        if not self.samples_ms or not all(0 < sample < math.inf for sample in self.samples_ms):
            raise ValueError("a measurement has samples, all of them positive and finite")
        if not self.low_ms <= self.median_ms <= self.high_ms:
            raise ValueError("a median lies inside its interval")


@dataclass(frozen=True)
class LaunchShape:
    """The size of a launch.

    Attributes:
        blocks: of the grid.
        threads: of a block.
        shared: dynamic shared memory, bytes a block.
    """

    entry_point: str
    blocks: int
    threads: int
    shared: int


@dataclass(frozen=True)
class LaunchCounters:
    """Nsight Compute's counters of one launch.

    Attributes:
        kernel: the entry point's name.
        values: by the counter's name.
    """

    kernel: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class TrialResult:
    """One configuration tried: exactly the parts its status implies.

    Attributes:
        launches: the different launches of one forward, in order; empty where nothing was timed.
        message: the text that explains a status other than `correct`; for `compile` the compiler's log.
        seconds: what each phase took, such as `compile`, `check`, `measure`; `restart` is a new worker's beginning.
        environment: what it was obtained with; None for what its study's log was opened under.
    """

    configuration: Configuration
    status: TrialStatus
    build: Build | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    message: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    environment: Environment | None = None
    launches: tuple[LaunchShape, ...] = ()

    def __post_init__(self) -> None:
        if self.status.timed != (self.measurement is not None):
            raise ValueError(f"a {self.status} trial {'needs a' if self.status.timed else 'has no'} measurement")
        if self.status.timed and not (self.verdict and self.verdict.passed):
            raise ValueError(f"a {self.status} trial has a verdict that passed")
        if (self.status is TrialStatus.CORRECTNESS) != (self.verdict is not None and not self.verdict.passed):
            raise ValueError("a trial is refused for correctness exactly when its verdict did not pass")
        if not self.status.timed and not self.message:
            raise ValueError(f"a {self.status} trial says why")

    def refused_late(self, stage: Stage) -> TrialResult:
        """Return this correct result as refused by a stage after it was recorded: without a time."""
        assert self.verdict is not None
        return replace(
            self,
            status=TrialStatus.CORRECTNESS,
            verdict=self.verdict.refused_by(stage),
            measurement=None,
            message=late_message(stage.name, stage.detail),
        )


def late_message(stage: str, detail: str) -> str:
    """Return the message of a trial that was recorded as correct and refused by a stage after that."""
    return f"refused late by {stage}: {detail}"


MEANINGFUL = 0.01
"""A difference that counts, as a share: less is a tie, however sure the difference is."""

TIED = 0.03
"""A tie is measured: the whole interval of the ratio lies within this share of 1."""


class Decision(enum.StrEnum):
    """The conclusion from a speed-up's whole interval."""

    FASTER = "faster"
    """The whole interval lies beyond 1 % faster."""
    SLOWER = "slower"
    """The whole interval lies beyond 1 % slower."""
    TIE = "tie"
    """The whole interval lies within 3 % of 1: equal, or too close to matter."""
    INCONCLUSIVE = "inconclusive"
    """Anything else: the interval is too wide to say anything. It is evidence of nothing."""


@dataclass(frozen=True)
class Ratio:
    """The speed-up of one thing over another: the median of per-round ratios with its interval.

    Attributes:
        rounds: interleaved rounds it was taken from.
        confidence: of the interval, such as 0.99.
    """

    value: float
    low: float
    high: float
    rounds: int
    confidence: float

    @property
    def decision(self) -> Decision:
        """Whether the difference is certain and large enough to count."""
        if self.low > 1 + MEANINGFUL:
            return Decision.FASTER
        if self.high < 1 / (1 + MEANINGFUL):
            return Decision.SLOWER
        tied = self.low >= 1 / (1 + TIED) and self.high <= 1 + TIED
        return Decision.TIE if tied else Decision.INCONCLUSIVE

    @property
    def differs(self) -> bool:
        """Whether one of the two is certainly faster; of two copies of one model, that the rounds are wrong."""
        return self.decision in (Decision.FASTER, Decision.SLOWER)

    def __str__(self) -> str:
        return f"{self.value:.3f}× [{self.low:.3f}, {self.high:.3f}]"


class Baseline(enum.StrEnum):
    """The baselines that a study's best configuration is compared with."""

    REFERENCE = "reference"
    """The reference model, eager."""
    DEFAULT = "default"
    """The kernel's hand-picked default configuration, where it is correct."""
    COMPILED = "compiled"
    """The reference under `torch.compile(mode="max-autotune")`, where it was asked for."""
    COPY = "copy"
    """A plain copy of as many bytes as the problem must move: the memory's ceiling."""


CONTROL = "control"
"""The contender that is a second copy of a baseline: a difference between equals is the rounds' own error."""


@dataclass(frozen=True)
class Comparison:
    """The interleaved timing that ends a study: the best configuration against its baselines.

    Attributes:
        medians_ms, samples_ms: by contender, which are `best`, the baselines and `control`; the n-th samples of all of
            them belong to the same round.
        speedups: of the best over each baseline.
        missing: baselines that were requested and could not be timed, and why.
        control: of the second copy of a baseline over the first; None where no such copy took part.
        conditions: the state of the device after the last round.
        environment: as a trial's.
        work: of one call; None where it was not recorded yet.
        energies_mj: of one call by contender, millijoules; those that were measured.
        unasked: what the study had no time to ask of its winner, or before it.
    """

    best: Configuration
    medians_ms: Mapping[str, float]
    samples_ms: Mapping[str, tuple[float, ...]]
    speedups: Mapping[Baseline, Ratio]
    missing: Mapping[Baseline, str] = field(default_factory=dict)
    control: Ratio | None = None
    conditions: Conditions = Conditions()
    environment: Environment | None = None
    work: Work | None = None
    energies_mj: Mapping[str, float] = field(default_factory=dict)
    unasked: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        """Whether these rounds found no difference between equals; where they did, they decide nothing."""
        return self.control is None or not self.control.differs

    @property
    def conclusive(self) -> bool:
        """Whether these rounds say how the best compares with the reference; where not, they confirm nothing."""
        return is_conclusive(self.control, self.speedups.get(Baseline.REFERENCE))

    def decision(self, baseline: Baseline) -> Decision | None:
        """Return whether the best is faster than a baseline; None where that one took no part."""
        ratio = self.speedups.get(baseline)
        if ratio is None:
            return None
        return ratio.decision if self.trusted else Decision.INCONCLUSIVE


def is_conclusive(control: Ratio | None, over_reference: Ratio | None) -> bool:
    """Return whether rounds say how their best compares with the reference.

    Args:
        control: of the second copy of a baseline over the first; None where no such copy took part.
        over_reference: of the best; None where the reference took no part, so that nothing is left open about it.
    """
    if control is not None and control.differs:
        return False
    return over_reference is None or over_reference.decision is not Decision.INCONCLUSIVE
