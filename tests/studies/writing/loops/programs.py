"""Runs models by their loop nests on the CPU: many of them from one source, which is compiled once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tunebench.kernels.blocks import loops
from tunebench.studies.writing.loops.lower import UnloweredError, export, lower
from tunebench.studies.writing.loops.program import Program, ProgramWriter, source_of
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Kernel, Plan
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import SearchSpace


@dataclass(frozen=True)
class Case:
    """A model with its inputs, by names that no other case has."""

    model: nn.Module
    inputs: Mapping[str, Any]


def program_of(case: Case, prefix: str) -> Program:
    """Write a case's program; its own tensors have values, which the program does not see."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return ProgramWriter(lower(case.model, case.inputs, export(case.model, case.inputs))).write().renamed(prefix)


def run(cases: Mapping[str, Case], folder: Path, dtype: str = "float32") -> dict[str, torch.Tensor | str]:
    """Return the results of cases by the names of their entry points, or why one has no program.

    Args:
        dtype: of the models' inputs.
    """
    programs: dict[str, Program] = {}
    reasons: dict[str, torch.Tensor | str] = {}
    for name, case in cases.items():
        try:
            programs[name] = program_of(case, name)
        except UnloweredError as error:
            reasons[name] = str(error)
    return {**reasons, **(results_of(cases, programs, folder, dtype) if programs else {})}


def results_of(
    cases: Mapping[str, Case], programs: Mapping[str, Program], folder: Path, dtype: str = "float32", **chosen: int
) -> dict[str, torch.Tensor]:
    """Return the results of programs.

    Args:
        dtype: of the models' inputs.
        chosen: values of tunables, by how their names end.
    """
    plan = plan_of(cases, programs, folder, dtype, **chosen)
    return {name: result_of(cases[name], program, plan) for name, program in programs.items()}


def kernel_of(
    cases: Mapping[str, Case], programs: Mapping[str, Program], folder: Path
) -> tuple[Kernel, dict[str, int]]:
    """Return one kernel of all programs, and the sizes that are constants of its binary."""
    passes = [one for program in programs.values() for one in program.passes]
    parts = [loops.early(), loops.vectors()] + [
        loops.over_elements()
        if one.reduced is None
        else loops.over_rows(one.name, rows=one.rows, lanes=one.lanes, parts=one.parts if one.joins else 0)
        for one in passes
    ]
    space = loops.space(*parts, loops.products())
    sizes = {
        size: cases[name].inputs[argument].shape[at]
        for name, program in programs.items()
        for size, (argument, at) in program.sizes.items()
    }
    if "fast_math" not in (source := source_of(list(programs.values()))):
        source = f"constexpr bool fast_math = false;\n{source}"
    kernel = Kernel.declare(
        str(folder / "programs.py"),
        SearchSpace(space.tunables),
        source=source,
        texts={},
        compiled_axes=tuple(sizes),
        dtypes=("float32", "float64", "float16", "bfloat16"),
    )
    return kernel, sizes


def plan_of(
    cases: Mapping[str, Case], programs: Mapping[str, Program], folder: Path, dtype: str = "float32", **chosen: int
) -> Plan:
    """Build the source of all programs."""
    kernel, sizes = kernel_of(cases, programs, folder)
    given = {
        one.name: value for one in kernel.space.tunables for end, value in chosen.items() if one.name.endswith(end)
    }
    problem, device, compiler = Problem(sizes, dtype, {}), find_device("cpu"), CpuCompiler()
    configuration = {**kernel.space.default, **given}
    build = compiler.compile(kernel.variant(configuration, problem, device.architecture))
    return Plan(kernel, configuration, problem, device, compiler.load(build, device.index))


def result_of(case: Case, program: Program, plan: Plan) -> torch.Tensor:
    """Run one program."""
    lines = [*(f"{size} = {one}.shape[{at}]" for size, (one, at) in program.sizes.items()), *program.lines]
    named = ", ".join(case.inputs)
    body = "\n".join(f"    {line}" for line in lines)
    context: dict[str, Any] = {"torch": torch, "loops": loops, "plan": plan}
    exec(f"def forward(self, {named}):\n{body}\n", context)
    with torch.no_grad():
        result: torch.Tensor = context["forward"](case.model, *case.inputs.values())
    return result
