"""A whole model by our back end beside Inductor alone: regions that are faster by themselves need not make it so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from tunebench.studies.inductor.backend import modes_options, tunebench
from tunebench.studies.inductor.find import run_model
from tunebench.studies.inductor.optimize import OptimizeReport
from tunebench.studies.inductor.verdicts import key_of, leave_to_inductor
from tunebench.tuner.device import device_of
from tunebench.tuner.problem import Work
from tunebench.tuner.result import Decision
from tunebench.tuner.timing.confirm import confirm
from tunebench.tuner.timing.measure import Control, clocks_for
from tunebench.tuner.timing.statistics import speedup
from tunebench.tuner.timing.torch_compile import apart, without_reports

_OURS, _THEIRS = "tunebench", "inductor"
_WARMING = 4
"""Calls that compile, and record a CUDA graph."""
_MANY_OPERATIONS = 1 << 62
_MANY_PROGRAMS = 1 << 10
"""PyTorch compiles eight programs of a function: the next model would be compared as it runs without a compiler."""


def faster_model(
    report: OptimizeReport, model: Callable[..., Any], inputs: Sequence[Any], mode: str | None = None
) -> Callable[..., Any]:
    """Return a model compiled by our back end, or by Inductor alone where that is faster, and note the ratio.

    Both are timed in the same rounds, where a region has a kernel of ours that is faster. Where none has, and where the
    model is slower with them, its graphs are compiled by Inductor alone from then on, in other programs too.

    Args:
        mode: of `torch.compile`.
    """
    ours, theirs = torch.compile(model, backend=tunebench, mode=mode), torch.compile(model, mode=mode)
    if report.interrupted:
        return ours
    names = {one.found.region.name for one in report.regions}
    if not report.has_faster:
        leave_to_inductor(_keys_of_graphs(model, inputs, mode), names)
        return ours
    calls = {name: partial(run_model, one, inputs) for name, one in ((_OURS, ours), (_THEIRS, theirs))}
    with without_reports(), torch._dynamo.config.patch(recompile_limit=_MANY_PROGRAMS):
        for call in (*calls.values(),) * _WARMING:
            call()
    tensors = [one for one in tree_leaves(inputs) if isinstance(one, torch.Tensor)]
    device = device_of(report.regions[0].found.region.device)
    clock = clocks_for(device, Work(sum(one.nbytes for one in tensors), _MANY_OPERATIONS))[-1]
    samples = confirm(calls, _THEIRS, calls[_THEIRS], clock, Control(device, clock))
    report.whole = speedup(samples[_OURS], samples[_THEIRS])
    if report.whole.decision is not Decision.SLOWER:
        return ours
    leave_to_inductor(_keys_of_graphs(model, inputs, mode), names)
    return theirs


def _keys_of_graphs(model: Callable[..., Any], inputs: Sequence[Any], mode: str | None) -> list[str]:
    """Return the keys of a model's graphs, as the back end has them."""
    keys: list[str] = []

    def backend(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        keys.append(key_of(graph, given, modes_options(mode)))
        return graph

    run_model(torch.compile(apart(model), backend=backend), inputs)
    return keys
