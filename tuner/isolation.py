"""The process that worker processes are forked from: it has imported what they need and never touched a device.

Apart from `worker.py`, so that it can be started before anything heavy is imported here: both processes then import
torch at the same time, and a study begins seconds earlier.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext


def start_forkserver(preload: Sequence[str]) -> None:
    """Start it, importing these modules; where it runs already, nothing happens."""
    context().set_forkserver_preload(list(preload))
    forkserver.ensure_running()


def context() -> ForkServerContext:
    """The multiprocessing context of workers."""
    return multiprocessing.get_context("forkserver")
