"""Stages that only a CUDA device can be asked: streams, graphs, a second device."""

from __future__ import annotations

import torch

from tunebench.tuner.errors import CaptureError
from tunebench.tuner.gate.distributions import DISTRIBUTIONS
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.model import CallOptions
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.users_code import described

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
    for name, own in (("the default stream", False), ("a stream", True)):
        case = harness.answers.case(pair, f"streams: {name}", lambda: second)
        if case is None:
            continue
        with harness.refusing(name):
            answer = pair.candidate.after_wait(first, second, case.call_seed, own_stream=own)
        harness.count()
        try:
            harness.judge(case, answer)
        except StageRefused as refusal:
            raise StageRefused(
                f"{name}: work is on another stream, or not done when its stream is: {refusal}"
            ) from refusal


def graphs(harness: Harness) -> None:
    """Captured into a CUDA graph and replayed on new content, where the reference can be."""
    if harness.device.type != "cuda":
        harness.pass_over(_CUDA_ONLY)
        return
    pair = harness.pair()
    inputs = pair.inputs(1)
    if harness.agree(pair, inputs, "before") is None:
        return
    if not pair.reference.capturable(inputs):
        harness.pass_over("the reference cannot be captured")
        return
    new = pair.changed(inputs, DISTRIBUTIONS["normal"], 5)
    case = harness.answers.case(harness.pair(), "graphs: replay", lambda: new)
    if case is None:
        return
    if case.draws or case.changed:
        harness.pass_over("the reference draws random numbers, or changes its inputs")
        return
    try:
        answer = pair.candidate.replayed(inputs, new)
    except CaptureError as error:
        raise StageRefused(str(error).splitlines()[0]) from error
    except FAILURES as error:
        raise StageRefused(f"while it is captured in a CUDA graph: {described(error)}") from error
    harness.count()
    try:
        harness.judge(case, answer)
    except StageRefused as refusal:
        raise StageRefused(f"replayed on new content: {refusal}") from refusal


def devices(harness: Harness) -> None:
    """On another device of the machine than the current one."""
    if harness.device.type != "cuda" or torch.cuda.device_count() < 2:
        harness.pass_over("asked where there are two CUDA devices")
        return
    other = f"cuda:{0 if harness.device.index else 1}"
    pair = harness.pair()
    pair.both(lambda model: model.to(other))
    harness.agree(pair, pair.inputs(1), f"on {other}", CallOptions(device=other))
