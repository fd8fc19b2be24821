"""The random states that a model may draw from: Python's, NumPy's, and PyTorch's on the host and on a device."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def host_state() -> object:
    """Return the states of Python's and NumPy's generators, to be compared."""
    numpy: Any = sys.modules.get("numpy")
    return random.getstate(), _values(numpy.random.get_state() if numpy else ())


@contextmanager
def random_state_kept(device: torch.device | None = None) -> Iterator[Callable[[], bool]]:
    """Put all random states back at the end; gives a function that says whether one of the host's has moved.

    Args:
        device: a GPU whose generator is put back, too.
    """
    numpy: Any = sys.modules.get("numpy")
    of_python, of_numpy, before = random.getstate(), numpy.random.get_state() if numpy else (), host_state()
    try:
        with torch.random.fork_rng([device] if device is not None and device.type == "cuda" else []):
            yield lambda: host_state() != before
    finally:
        random.setstate(of_python)
        if numpy:
            numpy.random.set_state(of_numpy)


def _values(state: Sequence[Any]) -> list[Any]:
    return [one.tobytes() if hasattr(one, "tobytes") else one for one in state]
