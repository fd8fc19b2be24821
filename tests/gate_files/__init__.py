"""Submission files that are wrong or right, by class: what `tests/benchmarks/gate_files.py` has the gate judge."""

from __future__ import annotations

from collections.abc import Sequence

from tests.gate_files import on_cuda
from tests.gate_files.entry import GateFile
from tests.gate_files.on_cuda import runs_on_cuda
from tests.gate_files.right import (
    backward,
    compiled,
    habits,
    half_types,
    in_place,
    integers,
    kinds_of_inputs,
    lookups,
    losses,
    manners,
    models,
    networks,
    norms,
    plain,
    random_numbers,
    reference_first,
    rewrites,
    several_inputs,
    structures,
    unusual_inputs,
    unusual_modules,
)
from tests.gate_files.wrong import (
    caches,
    calls,
    conditions,
    gradients,
    hostile,
    layouts,
    machine,
    memory,
    modules,
    precision,
    remembered,
    sizes,
    state,
    unvaried,
    values,
)
from tests.gate_files.wrong import manners as wrong_manners

WRONG: Sequence[GateFile] = tuple(
    file
    for module in (
        values,
        precision,
        caches,
        remembered,
        sizes,
        conditions,
        layouts,
        gradients,
        modules,
        calls,
        wrong_manners,
        memory,
        unvaried,
        state,
        hostile,
        machine,
    )
    for file in module.FILES
)
RIGHT: Sequence[GateFile] = tuple(
    file
    for module in (
        plain,
        norms,
        networks,
        losses,
        structures,
        integers,
        random_numbers,
        in_place,
        lookups,
        half_types,
        several_inputs,
        models,
        habits,
        rewrites,
        reference_first,
        kinds_of_inputs,
        compiled,
        manners,
        backward,
        unusual_inputs,
        unusual_modules,
    )
    for file in module.FILES
)
FILES: Sequence[GateFile] = (*WRONG, *RIGHT)
ON_CUDA: Sequence[GateFile] = on_cuda.FILES

HANGS = frozenset({*hostile.HANGS, *machine.HANGS, *on_cuda.HANGS})
"""The names of those whose check takes as long as it may."""

__all__ = ["FILES", "HANGS", "ON_CUDA", "RIGHT", "WRONG", "runs_on_cuda"]
