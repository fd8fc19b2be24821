"""Calls captured in CUDA graphs, and the device left as it was where one cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from tunebench.tuner.errors import CaptureError, LaunchError

Result = TypeVar("Result")

_WARMING_CALLS = 2


def capture(call: Callable[[], Result], warming: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Return a call as a graph on the current device, and its result while it was captured.

    Args:
        call: what is captured.
        warming: run before on another stream: one-off work (loading a kernel, choosing an algorithm, a first
            allocation) is not allowed in a capture.

    Raises:
        CaptureError: the call cannot be captured; the device is as it was.
    """
    side = new_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARMING_CALLS):
            warming()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            result = call()
    except (RuntimeError, LaunchError) as error:
        torch.cuda.synchronize()
        _free_generator()
        raise CaptureError(f"cannot be captured in a CUDA graph: {error}") from error
    return graph, result


def _free_generator() -> None:
    """Free torch's random generator, which counts as captured after a failed capture until one succeeds."""
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=new_stream(), capture_error_mode="thread_local"):
        torch.zeros(1, device="cuda")


def new_stream(device: torch.device | None = None) -> torch.cuda.Stream:
    """Return a stream of a device, the current one unless named: torch's own for captures is of its first device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
