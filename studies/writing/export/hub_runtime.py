"""The library of an exported project, which Hugging Face's kernel-builder builds: `hub.py` copies from here."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import torch

from tunebench.studies.writing.export.runtime import Kernels

ops: Any = None


class Library(Kernels):
    """The operators of this build, which kernel-builder registers under a name of its own."""

    @functools.cache  # noqa: B019 - there is one library
    def _launcher(self, entry_point: str) -> tuple[Callable[[bytes, bool], int], Callable[..., bytes]]:
        """See `runtime.Library`."""

        def launch(packed: bytes, early: bool) -> int:
            return int(ops.launch(entry_point, [*memoryview(packed).cast("q")], early))

        return launch, struct.Struct(f"8q{ops.kinds(entry_point)}").pack

    @functools.cache  # noqa: B019 - there is one library
    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Return how many blocks of that many threads one multiprocessor holds at once."""
        return max(1, int(ops.resident_blocks(entry_point, threads, shared)))


def built_library() -> Library | None:
    """Return the library; None where nothing could run it."""
    return Library() if torch.cuda.is_available() else None
