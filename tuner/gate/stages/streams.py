"""Stages that only a CUDA device can be asked: streams, graphs, a second device."""

from __future__ import annotations

from typing import Any

import torch

from tunebench.tuner.errors import CaptureError
from tunebench.tuner.gate.distributions import DISTRIBUTIONS, changed
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.judge import judge_structure, judge_values
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.timing.capture import capture
from tunebench.tuner.users_code import described

_WAIT_CYCLES = 6_000_000  # some 3 ms, many times what the host needs to queue a call
_CUDA_ONLY = "asked on CUDA devices only"


def streams(harness: Harness) -> None:
    """Work belongs to the caller's stream: it waits for what is queued before it, and is done when that stream is.

    The inputs are written on the stream after a wait, so that work which does not wait reads what was there before; the
    output is read by another stream as soon as an event behind the call has come, so that work which is not yet done
    shows.
    """
    if harness.device.type != "cuda":
        harness.pass_over(_CUDA_ONLY)
        return
    pair = harness.pair()
    first, second = pair.inputs(1), pair.inputs(2)
    if harness.agree(pair, first, "before") is None:
        return
    for name, stream in (
        ("the default stream", torch.cuda.default_stream(harness.device)),
        ("a stream", _stream(harness)),
    ):
        case = harness.answers.case(pair, f"streams: {name}", lambda: second, torch.no_grad)
        if case is None:
            continue
        read, done = _stream(harness), torch.cuda.Event()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(harness.device)
        with harness.refusing(name), torch.cuda.stream(stream):
            inputs = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in first)
            torch.cuda._sleep(_WAIT_CYCLES)  # type: ignore[no-untyped-call]
            for value, new in zip(inputs, second, strict=True):
                if isinstance(value, torch.Tensor):
                    value.copy_(new)
            output = pair.candidate(*inputs)
            done.record()
        with torch.cuda.stream(read):
            read.wait_event(done)
            seen = judge_structure(case, output).clone()
        torch.cuda.synchronize(harness.device)
        harness.count()
        try:
            judge_values(case, seen, kinds_may_differ=harness.contender.exemptions.rewrites_algebra)
        except StageRefused as refusal:
            raise StageRefused(
                f"{name}: work is on another stream, or not done when its stream is: {refusal}"
            ) from refusal


def _stream(harness: Harness) -> torch.cuda.Stream:
    return torch.cuda.Stream(harness.device)  # type: ignore[no-untyped-call]


def graphs(harness: Harness) -> None:
    """Captured into a CUDA graph and replayed on new content, where the reference can be."""
    if harness.device.type != "cuda":
        harness.pass_over(_CUDA_ONLY)
        return
    pair = harness.pair()
    inputs = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in pair.inputs(1))
    if harness.agree(pair, inputs, "before") is None:
        return
    try:
        _capture(pair.reference, inputs)
    except FAILURES:
        harness.pass_over("the reference cannot be captured")
        return
    try:
        graph, output = _capture(pair.candidate, inputs)
    except CaptureError as error:
        raise StageRefused(str(error).splitlines()[0]) from error
    except FAILURES as error:
        raise StageRefused(f"while it is captured in a CUDA graph: {described(error)}") from error
    new = tuple(changed(value, DISTRIBUTIONS["normal"], 5) for value in inputs)
    fresh = harness.pair()
    case = harness.answers.case(fresh, "graphs: replay", lambda: new, torch.no_grad)
    if case is None:
        return
    for value, other in zip(inputs, new, strict=True):
        if isinstance(value, torch.Tensor):
            value.copy_(other)
    graph.replay()
    torch.cuda.synchronize(harness.device)
    harness.count()
    try:
        judge_values(
            case, judge_structure(case, output), kinds_may_differ=harness.contender.exemptions.rewrites_algebra
        )
    except StageRefused as refusal:
        raise StageRefused(f"replayed on new content: {refusal}") from refusal


def _capture(module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    return capture(lambda: module(*inputs), warming=lambda: module(*inputs))


def devices(harness: Harness) -> None:
    """On another device of the machine than the current one."""
    if harness.device.type != "cuda" or torch.cuda.device_count() < 2:
        harness.pass_over("asked where there are two CUDA devices")
        return
    other = torch.device("cuda", (harness.device.index or 0) + 1 if (harness.device.index or 0) == 0 else 0)
    pair = harness.pair()
    pair.change(lambda module: module.to(other))
    inputs = tuple(value.to(other) if isinstance(value, torch.Tensor) else value for value in pair.inputs(1))
    harness.agree(pair, inputs, f"on {other}")
