"""The library of an exported project, which Hugging Face's kernel-builder builds: `hub.py` copies from here."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from tunebench.studies.writing.export.runtime import _value

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
        values = [_value(one) for one in arguments]
        whole = [one if isinstance(one, int) else 0 for one in values]
        real = [float(one) for one in values]
        stream = torch._C._cuda_getCurrentRawStream(device)
        status = ops.launch(entry_point, list(extents), shared, stream, whole, real, early)
        if status:
            raise RuntimeError(f"launch of '{entry_point}' with blocks and threads {extents}: CUDA error {status}")

    @functools.cache  # noqa: B019 - there is one library
    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Return how many blocks of that many threads one multiprocessor holds at once."""
        return max(1, int(ops.resident_blocks(entry_point, threads, shared)))


def built_library() -> Library | None:
    """Return the library; None where nothing could run it."""
    return Library() if torch.cuda.is_available() else None
