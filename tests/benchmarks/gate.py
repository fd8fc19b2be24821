"""What the gate costs, stage by stage: `python -m tests.benchmarks.gate`.

The problem is scalar_mul at 2^28 floats (1 GiB in, 1 GiB out), unless sizes say otherwise. The first variant pays for
what every process pays once (loading torch's kernels, memory from the driver) and is shown apart; `quick` is what the
gate adds to every variant, `full` what it adds to one that may be a finalist.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, cast

import torch
import typer
from torch import nn

from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.request.text import read_sizes
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.gate.battery import Depth, run_battery
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.memory import synchronise
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.quick import QuickGate, pinned
from tunebench.tuner.gate.stage_log import StageLog
from tunebench.tuner.gate.values import Values
from tunebench.tuner.kernel import Mode, Plan
from tunebench.tuner.result import Verdict
from tunebench.tuner.study.subject import Subject


def main(
    kernel: Annotated[str, typer.Option(help="A kernel's name or folder.")] = "scalar_mul",
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Default: M=16384 N=16384, 2^28 floats.")
    ] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    mode: Annotated[Mode, typer.Option()] = Mode.EVAL,
    variants: Annotated[int, typer.Option(min=2, help="How many variants, evenly spread over the space.")] = 8,
) -> None:
    """Print seconds by stage: of the first variant, and medians of the others."""
    where = find_device(device)
    factory = load_model(kernel)
    declared = factory.kernel
    sizes = read_sizes("--size", size or (["M=16384", "N=16384"] if kernel == "scalar_mul" else []))
    started = time.perf_counter()
    subject = Subject.prepare(declared, factory, declared.reference(sizes), mode, where)
    synchronise(where.torch_device)
    prepared = time.perf_counter() - started
    space = declared.space.enumerate(subject.problem, where)
    compiler = compiler_for(where)
    gate = QuickGate(Model(cast(nn.Module, subject.model)), subject.oracle, Exemptions.of(declared))
    quick: list[Mapping[str, float]] = []
    full: list[Mapping[str, float]] = []
    for number in range(0, len(space), max(1, len(space) // variants))[:variants]:
        configuration = space[number]
        build = BuildCache().build(compiler, declared.variant(configuration, subject.problem, where.architecture))
        plan = Plan(subject.kernel, configuration, subject.problem, where, compiler.load(build, where.index))
        with torch.no_grad():
            subject.model.pin(plan)
            output = Values.of(subject.model(*subject.oracle.cases[0].inputs))
        synchronise(where.torch_device)
        started = time.perf_counter()
        prepare = pinned(subject.model, plan)
        verdict = gate.check_again(prepare, gate.check(prepare, StageLog()), output)
        synchronise(where.torch_device)
        quick.append(_seconds(verdict, time.perf_counter() - started))
        del output
        log = StageLog()
        started = time.perf_counter()
        contender = KernelContender(declared, factory, configuration, compiler, build, builds_more=False)
        run_battery(subject.answers, contender, log, Depth.FINALIST)
        synchronise(where.torch_device)
        full.append(_seconds(log.verdict(verdict.tolerance), time.perf_counter() - started))
    figures = {
        "problem": str(subject.problem),
        "device": where.name,
        "variants": len(quick),
        "reference_seconds_once": round(prepared, 4),
        "quick_first": quick[0],
        "quick_median": _medians(quick[1:]),
        "full_first": full[0],
        "full_median": _medians(full[1:]),
    }
    print(json.dumps(figures, indent=2))


def _seconds(verdict: Verdict, total: float) -> dict[str, float]:
    if not verdict.passed:
        raise typer.BadParameter(f"a variant is refused: {verdict.reason}")
    stages = {stage.name: round(stage.seconds, 5) for stage in verdict.stages}
    return {**stages, "total": round(total, 5)}


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 5) for name in runs[0]}


if __name__ == "__main__":
    typer.run(main)
