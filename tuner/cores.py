"""Which cores of a CPU do what, so that compilers and references do not disturb the ones that drive a timing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

_FEW = 2
"""With so many cores or fewer there is none to spare."""


def driving_cores(cores: Collection[int], devices: int) -> Sequence[int]:
    """A core for each device whose timing it drives, and nothing else; none where others would have too few left.

    Args:
        cores: those that this process may use.
    """
    if len(cores) <= _FEW or len(cores) < 2 * devices:
        return ()
    return sorted(cores)[:devices]


@contextmanager
def kept_to(cores: Collection[int]) -> Iterator[None]:
    """This thread, and what it starts, on these cores for as long as the block runs; on all where none is named."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
