"""How many configurations a study has pending: enough for its devices and compilers, and no more."""

from __future__ import annotations

from collections.abc import Mapping

FEW = 8
"""Limit of pending configurations to begin with, or two for each device where that is more.

Proposals around what is pending are worse ones: docs/several_devices.md has what that costs.
"""

MOST = 17
"""Several devices that wait for compilers have more pending, up to this."""

_LONG = 0.1
"""A wait that is longer than this share of the time in which devices evaluate."""


class Pending:
    """How many configurations are asked for before the first of them is told.

    One device never has more than at the beginning, so that its order of trials stays a function of the seed.
    """

    def __init__(self) -> None:
        self._most = FEW
        self._evaluations, self._waited, self._worked = 0, 0.0, 0.0  # since that was set

    def most(self, slots: int, builds: int) -> int:
        """How many there may be now.

        Args:
            slots: devices, each of which evaluates one at a time.
            builds: compilers that run at once; what is neither built nor evaluated would only wait.
        """
        return max(min(self._most, builds + slots), 2 * slots)

    def learn(self, slots: int, seconds: Mapping[str, float]) -> None:
        """Take in what the phases of an evaluation took: where devices wait for builds, each gets one more."""
        if slots == 1:
            return
        waited = seconds.get("wait", 0.0)
        self._waited += waited
        self._worked += sum(seconds.values()) - waited - seconds.get("compile", 0.0)
        self._evaluations += 1
        if self._evaluations < self._most:
            return
        if self._waited > _LONG * self._worked:
            self._most = min(self._most + slots, MOST)
        self._evaluations, self._waited, self._worked = 0, 0.0, 0.0
