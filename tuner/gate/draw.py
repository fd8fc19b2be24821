"""The draw of a run of the gate: everything about its questions that may be one or another follows from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self, TypeVar

Item = TypeVar("Item")

LARGEST_SEED = (1 << 31) - 1
"""The largest seed of a run."""

_INPUTS = 1000
"""Number of seeds for inputs that one run may use."""


@dataclass(frozen=True)
class Draw:
    """The seed of a run, and what follows from it: the same seed asks the same questions.

    Each question draws by a name of its own, so that one more of them changes no other.
    """

    seed: int = 0

    @classmethod
    def fresh(cls) -> Self:
        """Draw a seed that nobody knows beforehand."""
        return cls(random.SystemRandom().randint(1, LARGEST_SEED))

    def seed_of(self, number: int) -> int:
        """Return the seed of this run's inputs of that number."""
        return self.seed * _INPUTS + number

    def shuffled(self, name: str, items: Iterable[Item]) -> list[Item]:
        """Return the items in an order that is drawn; seed 0 keeps the one in which they are written."""
        order = list(items)
        if self.seed:
            self._random(name).shuffle(order)
        return order

    def within(self, name: str, first: int, last: int) -> int:
        """Draw a whole number from `first` to `last`."""
        return self._random(name).randint(first, last)

    def factor(self, name: str) -> float:
        """Draw a number from 1.25 to 1.75 of few bits, which products keep exact."""
        return 1.0 + self.within(name, 16, 48) / 64

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")


FIXED = Draw()
"""The questions of studies: trials are compared with each other, and the reference answers once for all of them."""
