"""Studies: their files, what they tune and on which workers, how they run, and what is built of their results ahead."""

from __future__ import annotations

from pathlib import Path

from tunebench.tuner.isolation import TRACER

_HAS_GPU = Path("/dev/nvidiactl").exists()

PRELOAD = (f"{__name__}.resolved", *[TRACER] * _HAS_GPU)
"""Modules that worker processes need, imported once by the server that they are forked from. On a GPU the full battery
needs the tracer; on a CPU it does without."""
