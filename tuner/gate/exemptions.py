"""The demands of the gate that a kernel is exempt from, because its author has declared it."""

from __future__ import annotations

from dataclasses import dataclass

from tunebench.tuner.kernel import Kernel


@dataclass(frozen=True)
class Exemptions:
    """The demands of the gate that a kernel has declared itself exempt from.

    Attributes:
        atomics: two runs may differ in their last bits.
        rewrites_algebra: where the reference is not finite, its result may be so in another way, and elsewhere in such
            a row (see `comparison.compare`).
        dense: its output may lie in memory in any order of its axes, without gaps.
        bulk_copies: entry points that racecheck is not asked about.
    """

    atomics: bool = False
    rewrites_algebra: bool = False
    dense: bool = False
    bulk_copies: tuple[str, ...] = ()

    @classmethod
    def of(cls, kernel: Kernel) -> Exemptions:
        """Return what this kernel has declared."""
        return cls(kernel.atomics, kernel.rewrites_algebra, bulk_copies=kernel.bulk_copies)
