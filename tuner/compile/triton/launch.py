"""Checks of every launch of a Triton function, wherever it runs."""

from __future__ import annotations

from collections.abc import Collection

from tunebench.tuner.build import Threads
from tunebench.tuner.errors import ArgumentError


def require_triton_launch(entry_point: str, known: Collection[str], threads: Threads, shared: int) -> None:
    """Refuse a launch that is none of a Triton function.

    Raises:
        ArgumentError: there is no such function, or Triton decides what is asked for.
    """
    if entry_point not in known:
        raise no_function(entry_point, known)
    if threads is not None or shared:
        raise ArgumentError(
            f"launch of '{entry_point}': a Triton function is given no threads and no shared memory: blocks= counts "
            "its programs, and the tunable num_warps says how large they are"
        )


def no_function(name: str, known: Collection[str]) -> ArgumentError:
    """Return the error of a launch of a function that a source has not."""
    return ArgumentError(
        f"no Triton function '{name}' to launch (known: {', '.join(known) or 'none'}); one is decorated with "
        "@triton.jit, and no other one calls it"
    )
