"""Whether loop nests of random models agree with the reference: `python -m tests.benchmarks.graphs --json FILE`.

Draws models of random operations from one seed after another (`tests/studies/writing/loops/random_graphs.py`), until
so many of those that have a program are compared with the reference on the CPU by the gate's tolerance, twenty-five
programs in a source. Prints the seed and the code of each that differs or fails, whether Inductor's own code differs
too, and why others have no program.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count as numbers
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "studies/writing/loops"))
from programs import Case, plan_of, result_of
from random_graphs import Graph, difference, graph_of, others_that_serve, written

from tunebench.studies.writing.loops.program import Program

_AT_ONCE = 25


@dataclass
class _Batch:
    """Models of one type that are compiled together."""

    graphs: dict[str, Graph] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)


def compared(batch: _Batch, inputs: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, str]:
    """Return how each model differs on inputs, or fails; empty where it agrees."""
    told: dict[str, str] = {}
    cases = {name: Case(graph.model(), inputs[name]) for name, graph in batch.graphs.items()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            dtype = str(next(iter(batch.graphs.values())).dtype).removeprefix("torch.")
            plan = plan_of(cases, batch.programs, Path(folder), dtype)
        except Exception as error:  # noqa: BLE001 - one that does not compile hides the others
            if len(cases) == 1:
                log = str(getattr(error, "log", "")) or str(error)
                return {name: f"does not compile: {_first_error(log)}" for name in cases}
            for name, graph in batch.graphs.items():
                told |= compared(_Batch({name: graph}, {name: batch.programs[name]}), inputs)
            return told
        for name, graph in batch.graphs.items():
            try:
                told[name] = difference(graph, inputs[name], result_of(cases[name], batch.programs[name], plan))
            except Exception as error:  # noqa: BLE001 - any failure is told
                told[name] = f"fails: {str(error).splitlines()[0]}"
    return told


def differs_in_inductor(graph: Graph) -> bool:
    """Whether Inductor's own code differs from the reference too."""
    with torch.no_grad():
        found = torch.compile(graph.model())(*graph.inputs.values())
    return bool(difference(graph, graph.inputs, found))


def _first_error(log: str) -> str:
    return next((line for line in log.splitlines() if "error:" in line), log.splitlines()[0] if log else "")


def main(
    count: Annotated[int, typer.Option(help="How many with a program are compared.")] = 500,
    seed: Annotated[int, typer.Option(help="The first.")] = 0,
    others: Annotated[bool, typer.Option(help="Ask other sizes of the inputs too, where the program serves.")] = False,
    file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the counts there too.")] = None,
) -> None:
    """Draw models and compare them."""
    batches = {dtype: _Batch() for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
    reasons: Counter[str] = Counter()
    faults: dict[str, str] = {}
    done = Counter[str]()

    def fault(graph: Graph, text: str) -> None:
        faults[graph.name] = text
        print(f"seed {graph.seed}, {graph.dtype}: {text}\n{_shapes(graph)}\n{graph.code}", flush=True)

    def finish(batch: _Batch) -> None:
        if not batch.graphs:
            return
        told = compared(batch, {name: graph.inputs for name, graph in batch.graphs.items()})
        if others:
            found = {
                name: inputs
                for name, graph in batch.graphs.items()
                if (inputs := others_that_serve(graph, batch.programs[name])) is not None
            }
            if found:
                rest = _Batch({one: batch.graphs[one] for one in found}, {one: batch.programs[one] for one in found})
                done["compared at other sizes"] += len(found)
                for name, text in compared(rest, found).items():
                    told[name] = told[name] or (text and f"at other sizes: {text}")
        for name, text in told.items():
            is_inductors = bool(text) and differs_in_inductor(batch.graphs[name])
            done["differ as in Inductor" if is_inductors else "differ" if text else "agree"] += 1
            if text:
                fault(batch.graphs[name], f"as in Inductor: {text}" if is_inductors else text)
        batch.graphs.clear()
        batch.programs.clear()

    for number in numbers(seed):
        if done["compared"] == count:
            break
        graph = graph_of(number)
        done["drawn"] += 1
        try:
            program = written(graph)
        except Exception as error:  # noqa: BLE001 - any other error is a fault
            done["raise"] += 1
            fault(graph, f"raises {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            continue
        if isinstance(program, str):
            done["none"] += 1
            reasons[program] += 1
            continue
        done["compared"] += 1
        batch = batches[graph.dtype]
        batch.graphs[graph.name], batch.programs[graph.name] = graph, program
        if len(batch.graphs) == _AT_ONCE:
            finish(batch)
    for batch in batches.values():
        finish(batch)
    print(*(f"{many:4} {reason}" for reason, many in reasons.most_common(40)), sep="\n")
    print(dict(done))
    if file is not None:
        told = {"first seed": seed, **done, "reasons": dict(reasons.most_common()), "faults": faults}
        file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _shapes(graph: Graph) -> str:
    named = {**graph.inputs, **{f"self.{name}": tensor for name, tensor in graph.held.items()}}
    return ", ".join(f"{name}: {tuple(one.shape)} {str(one.dtype)[6:]}" for name, one in named.items())


if __name__ == "__main__":
    typer.run(main)
