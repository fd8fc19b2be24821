"""A full battery of two stages where TUNEBENCH_SHORT_STUDIES is set, as the fixture `short_studies` does.

Every process of a test imports this, those that are forked for a study as well, which have its environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tunebench.tuner.gate import battery

VARIABLE = "TUNEBENCH_SHORT_STUDIES"
ALL = tuple(battery.STEPS)


class _Steps(tuple[battery.Step, ...]):
    def __iter__(self) -> Iterator[battery.Step]:
        return iter(ALL[:2] if VARIABLE in os.environ else ALL)


battery.STEPS = _Steps(ALL)
