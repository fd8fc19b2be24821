"""The library of an exported project, which Hugging Face's kernel-builder builds: `hub.py` copies from here."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

import torch

from tunebench.studies.writing.export.runtime import numbers

ops: Any = None


class Library:
    """The operators of this build, which kernel-builder registers under a name of its own."""

    def launch(
        self,
        entry_point: str,
        device: int,
        extents: Sequence[int],
        shared: int,
        arguments: Sequence[Any],
        *,
        early: bool = False,
    ) -> None:
        """Launch on torch's current stream of a device, which is the current one; see `runtime.Library`."""
        form = self._form(entry_point)
        stream = torch._C._cuda_getCurrentRawStream(device)
        packed = form.pack(*extents, shared, stream, *numbers(arguments))
        status = ops.launch(entry_point, [*memoryview(packed).cast("q")], early)
        if status:
            raise RuntimeError(f"launch of '{entry_point}' with blocks and threads {extents}: CUDA error {status}")

    @functools.cache  # noqa: B019 - there is one library
    def _form(self, entry_point: str) -> struct.Struct:
        return struct.Struct(f"8q{ops.kinds(entry_point)}")

    @functools.cache  # noqa: B019 - there is one library
    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Return how many blocks of that many threads one multiprocessor holds at once."""
        return max(1, int(ops.resident_blocks(entry_point, threads, shared)))


def built_library() -> Library | None:
    """Return the library; None where nothing could run it."""
    return Library() if torch.cuda.is_available() else None
