"""Questions to a module that only a CUDA device can be asked: work on streams, and in graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.truth import device_of_inputs, write
from tunebench.tuner.gate.values import Values, cloned
from tunebench.tuner.reference import seed_generators
from tunebench.tuner.timing.capture import capture, new_stream

_WAIT_CYCLES = 6_000_000  # some 3 ms, many times what the host needs to queue a call


def after_wait(
    module: nn.Module, first: Sequence[Any], second: Sequence[Any], seed: int, *, own_stream: bool
) -> Values:
    """Return a call's output on a stream on which `second` is written over `first` after a wait, read as soon as an
    event behind the call has come."""
    device = device_of_inputs(first)
    stream = new_stream(device) if own_stream else torch.cuda.default_stream(device)
    read, done = new_stream(device), torch.cuda.Event()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        inputs = cloned(first)
        torch.cuda._sleep(_WAIT_CYCLES)  # type: ignore[no-untyped-call]
        write(inputs, second)
        seed_generators(seed, device)
        output = Values.of(module(*inputs))
        done.record()
    with torch.cuda.stream(read):
        read.wait_event(done)
        seen = output.mapped(torch.clone)
    torch.cuda.synchronize(device)
    return seen


def replayed(module: nn.Module, inputs: Sequence[Any], others: Sequence[Any]) -> Values:
    """Return what a captured call leaves in its output once it is replayed with other inputs in place of its own."""
    mine, device = cloned(inputs), device_of_inputs(inputs)
    with torch.cuda.device(device):  # what is captured is the stream of the current one
        graph, output = capture(lambda: module(*mine), warming=lambda: module(*mine))
        write(mine, others)
        graph.replay()
        torch.cuda.synchronize(device)
    return Values.of(output)


def capturable(module: nn.Module, inputs: Sequence[Any]) -> bool:
    """Whether a call can be captured in a CUDA graph."""
    mine = cloned(inputs)
    try:
        with torch.cuda.device(device_of_inputs(inputs)):
            capture(lambda: module(*mine), warming=lambda: module(*mine))
    except FAILURES:
        return False
    return True
