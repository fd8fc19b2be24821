"""The accuracies `eager` and `tf32`: a variant is no more wrong than the reference itself is, on the same inputs, at
full precision or with its products in TF32.

How wrong is the largest error and the root mean square of all errors, both against float64 and relative to the size of
the output. They are asked of all draws of the inputs together, and of every other case. The figures of two equally good
answers differ: by as many times as the reference's own do from its best draw to its worst, a variant's may be larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import ErrorFigures

DRAWS: Mapping[Accuracy, int] = {Accuracy.TOLERANCE: 2, Accuracy.EAGER: 4, Accuracy.TF32: 4}
"""Number of draws of the inputs that every variant is checked on."""


@dataclass(frozen=True)
class Wrong:
    """How wrong answers are, relative to the size of the output.

    Attributes:
        largest: the largest error of an element.
        rms: the root mean square of all errors.
    """

    largest: float
    rms: float

    def __str__(self) -> str:
        return f"{self.largest:.2e} (RMS {self.rms:.2e})"

    @classmethod
    def of(cls, errors: ErrorFigures) -> Wrong:
        """A variant's in one call."""
        return cls(errors.max_relative, errors.relative_norm)

    @classmethod
    def together(cls, several: Sequence[Wrong]) -> Wrong:
        """Return the figures of several answers of one size, taken together."""
        mean_square = math.fsum(one.rms**2 for one in several) / len(several)
        return cls(max(one.largest for one in several), math.sqrt(mean_square))

    def exceeds(self, other: Wrong) -> bool:
        """Whether either figure is larger."""
        return not (self.largest <= other.largest and self.rms <= other.rms)

    def at_least(self, other: Wrong) -> Wrong:
        """The larger of each figure."""
        return Wrong(max(self.largest, other.largest), max(self.rms, other.rms))

    def times(self, factors: Wrong) -> Wrong:
        """Each figure times its factor."""
        return Wrong(self.largest * factors.largest, self.rms * factors.rms)


@dataclass(frozen=True)
class Exactness:
    """A variant beside the reference, in some cases together.

    Attributes:
        asked: of what, for people.
        own: the reference's.
        allowed: the same with its noise.
    """

    asked: str
    variant: Wrong
    own: Wrong
    allowed: Wrong

    @property
    def holds(self) -> bool:
        """Whether the variant is no more wrong."""
        return not self.variant.exceeds(self.allowed)

    def __str__(self) -> str:
        return f"{self.asked}: error {self.variant} of the output's size, eager's own {self.own}"


def exactness(cases: Mapping[str, Mapping[str, ErrorFigures]], draws: int, passes: float = 0.0) -> list[Exactness]:
    """A variant beside the reference, the draws first.

    Args:
        cases: the errors of each call, by the case's name and the path in the output.
        draws: so many cases, which come first, are draws of the same inputs from several seeds.
        passes: an error that may be made in any case.
    """
    least = Wrong(passes, passes)
    calls = list(cases.values())
    groups = {f"{draws} draws of the inputs": calls[:draws]}
    groups |= {name: [cases[name]] for name in list(cases)[draws:]}
    found = []
    for path in calls[0]:
        noise = _noise([_own(call[path]) for call in calls[:draws]])
        for name, group in groups.items():
            errors = [call[path] for call in group if path in call]
            if errors:
                own = Wrong.together([*map(_own, errors)])
                variant = Wrong.together([*map(Wrong.of, errors)])
                found.append(Exactness(name, variant, own, own.times(noise).at_least(least)))
    return found


def _own(errors: ErrorFigures) -> Wrong:
    return Wrong(errors.reference_max_relative, errors.reference_relative_norm)


def _noise(draws: Sequence[Wrong]) -> Wrong:
    """How many times more wrong the reference is in its worst draw than in its best; 1 where it is exact in one."""

    def spread(of_draws: Sequence[float]) -> float:
        return max(of_draws) / min(of_draws) if min(of_draws) > 0 else 1.0

    return Wrong(spread([one.largest for one in draws]), spread([one.rms for one in draws]))
