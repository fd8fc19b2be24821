"""Division of a CPU's cores, so that compilers and references do not disturb the ones that drive a timing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_FEW = 2
"""Number of cores up to which there is none to spare."""

_TOPOLOGY = Path("/sys/devices/system/cpu")


def driving_cores(cores: Collection[int], devices: int, topology: Path = _TOPOLOGY) -> Sequence[Collection[int]]:
    """Return for each device the cores that drive its timing alone; none where others would have too few left.

    They are one physical core, with all its hardware threads: two threads of one are slower than each alone. Where
    there are not enough physical ones, it is one thread.

    Args:
        cores: those that this process may use, as the system numbers hardware threads.
        topology: where Linux tells which of them belong together.
    """
    physical = sorted({tuple(sorted(_threads_beside(core, topology) & set(cores))) for core in cores})
    for whole in (physical, [(core,) for core in sorted(cores)]):
        if len(whole) > _FEW and len(whole) >= 2 * devices:
            return whole[:devices]
    return ()


def _threads_beside(core: int, topology: Path) -> set[int]:
    """Return all hardware threads of this one's physical core; itself alone where the system does not say."""
    try:
        listed = (topology / f"cpu{core}" / "topology" / "thread_siblings_list").read_text(encoding="utf-8")
        spans = [part.partition("-") for part in listed.strip().split(",")]
        return {number for first, _, last in spans for number in range(int(first), int(last or first) + 1)} | {core}
    except (OSError, ValueError):
        return {core}


@contextmanager
def kept_to(cores: Collection[int]) -> Iterator[None]:
    """Keep this thread, and what it starts, to these cores as long as the block runs; to all where none is named."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
