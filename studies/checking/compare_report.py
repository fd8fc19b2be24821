"""The result of a comparison, and its decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunebench.tuner.result import Decision, Ratio
from tunebench.tuner.timing.statistics import Samples, control_ratio, medians_of, speedup


@dataclass(frozen=True)
class CompareReport:
    """The result of a comparison.

    Attributes:
        first, second: what was compared, for people.
        problem, device: what it was compared for, and where.
        samples_ms: by `first`, `second` and `control`, the second copy of the second; None where one was refused.
        refusal: why there is nothing to compare: one of them is wrong or fails.
        trusted: what was compared, its reference and the judge ran in one process; False of files, which nobody vouches
            for.
        settings: of PyTorch's that were in force, where they were given or not the defaults.
        box: how the processes of files are shut off from others; empty of kernels.
    """

    first: str
    second: str
    problem: str
    device: str
    samples_ms: Samples | None
    refusal: str = ""
    trusted: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    box: str = ""

    @property
    def ratio(self) -> Ratio | None:
        """How many times faster the first is than the second."""
        return speedup(self.samples_ms["first"], self.samples_ms["second"]) if self.samples_ms else None

    @property
    def control(self) -> Ratio | None:
        """How much faster the second copy of the second seemed."""
        return control_ratio(self.samples_ms, "second") if self.samples_ms else None

    @property
    def medians_ms(self) -> Mapping[str, float]:
        """By contender."""
        return medians_of(self.samples_ms or {})

    @property
    def decision(self) -> Decision | None:
        """Whether the first is faster; inconclusive where the rounds told equals apart, None where one was refused."""
        if self.ratio is None or self.control is None:
            return None
        return Decision.INCONCLUSIVE if self.control.differs else self.ratio.decision
