"""The exam: `python -m tests.benchmarks.exam CHECKOUT --json FILE`, on a machine with one or more GPUs.

CHECKOUT is a checkout of KernelBench, as for `tests.benchmarks.kernelbench`. Each problem of
`tests.benchmarks.coverage` (the modules of `modules.toml`, levels 1 and 2 of KernelBench) is written by `tunebench
new`, tuned for a few seconds, timed in the same rounds as eager and torch.compile's max-autotune, and where it is one
of KernelBench's evaluated by that: five seeds, its tolerance, its clock, the model as it is constructed. FILE has a row
as soon as a problem is done; the same command goes on where the last one stopped, in an order that is drawn by lot, so
that a part is a fair sample. `python -m tests.benchmarks.exam.table FILE` makes the tables of the page.

Three processes take turns on each GPU: one measures, alone, while the others import, and build what torch.compile will
choose from, which takes longer than a turn.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import time
from dataclasses import asdict
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tests.benchmarks.exam.lane import Lane, run_lane
from tests.benchmarks.exam.measure import Budget, ceilings_of
from tests.benchmarks.exam.problems import ExamProblem, problems
from tests.benchmarks.exam.table import print_tables
from tests.benchmarks.rows import eager

from tunebench import __version__
from tunebench.studies.checking.bench import Ceilings
from tunebench.studies.request.text import read_tunables
from tunebench.tuner.device import find_device
from tunebench.tuner.environment import current_environment
from tunebench.tuner.files import whole_file

_WAIT_SECONDS = 1.0
_LANES = 3
"""Processes that share a GPU."""
_MEASURING_CORES = 4
"""Cores for the one that measures; the others build for the next."""


def main(
    checkout: Annotated[Path | None, typer.Argument(help="A checkout of KernelBench. Default: without it.")] = None,
    file: Annotated[Path, typer.Option("--json", help="Rows that are done, and where to put those to come.")] = Path(
        "exam.json"
    ),
    seconds: Annotated[float, typer.Option(help="When nothing more is begun.")] = 480.0,
    tune_seconds: Annotated[float, typer.Option(help="Of tuning each problem, in all.")] = 20.0,
    trials: Annotated[int, typer.Option(help="Of each problem, at most.")] = 40,
    bench_seconds: Annotated[float, typer.Option(help="Of timing each problem.")] = 2.0,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="With torch.compile, or without.")] = True,
    only: Annotated[list[str] | None, typer.Option(help="Part of a name, such as 'level1 19'; repeatable.")] = None,
    tunable: Annotated[
        list[str] | None, typer.Option(help="NAME=V1,V2,... restricts a tunable's values; repeatable.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="For kernels, databases and caches.")] = Path("/tmp/tunebench-exam"),
    write: Annotated[bool, typer.Option("--write", help="The kernels' folders alone, without a GPU.")] = False,
) -> None:
    """Examine what FILE has no row of."""
    began = time.time()
    if checkout is not None and not (checkout / "src" / "kernelbench" / "eval.py").exists():
        raise typer.BadParameter(f"{checkout}: no src/kernelbench/eval.py; name a checkout of KernelBench")
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": []}
    rows: list[dict[str, Any]] = known["rows"]
    finished = {row["name"] for row in rows}
    wanted = [one for one in problems(checkout, folder / "kernels", only or ()) if one.name not in finished]
    if write:
        for one in wanted:
            one.write()
            print(one.path, one.block, flush=True)
        return
    gpus = _gpus()
    ceilings = ceilings_of(None if gpus[0] else "cpu")
    head = {**known, **_head(ceilings)}
    spawn = multiprocessing.get_context("spawn")
    waiting: Queue[ExamProblem] = spawn.Queue()
    done: Queue[dict[str, Any]] = spawn.Queue()
    for problem in wanted:
        waiting.put(problem)
    budget = Budget(tune_seconds, trials, bench_seconds, compiled, read_tunables("--tunable", tunable or ()))
    folder.mkdir(parents=True, exist_ok=True)
    lanes = []
    cores = max(2, (os.cpu_count() or 2) // len(gpus) - _MEASURING_CORES)
    turns = [spawn.Lock() for _ in gpus]  # kept until their processes have them
    for visible, turn in zip(gpus, turns, strict=True):
        for _ in range(_LANES):
            lane = Lane(
                len(lanes), visible, cores, folder, budget, checkout and checkout.resolve(), ceilings, began + seconds
            )
            lanes.append(spawn.Process(target=run_lane, args=(lane, turn, waiting, done)))
            lanes[-1].start()
    while any(process.is_alive() for process in lanes) or not done.empty():
        try:
            row = done.get(timeout=_WAIT_SECONDS)
        except queue.Empty:
            continue
        rows.append(row)
        with whole_file(file) as stream:
            stream.write((json.dumps({**head, "rows": rows}, indent=1) + "\n").encode())
        print(_line(row, time.time() - began), flush=True)
    waiting.cancel_join_thread()
    print(f"{len(rows)} of {len(rows) + len(wanted) - (len(rows) - len(finished))} in {time.time() - began:.0f} s")
    print(f"eager: {head['eager']}")
    print_tables(rows)


def _gpus() -> list[str] | list[None]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if not torch.cuda.is_available():
        return [None]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return chosen.split(",") if chosen else [str(index) for index in range(torch.cuda.device_count())]


def _head(ceilings: Ceilings) -> dict[str, Any]:
    device = find_device(None)
    told = current_environment(device, "")
    return {
        "device": str(device),
        "tunebench": __version__,
        "torch": torch.__version__,
        "driver": getattr(told, "driver", None),
        "ceilings": asdict(ceilings),
        "eager": eager(),
    }


def _line(row: dict[str, Any], passed: float) -> str:
    def ratio(value: list[float] | None) -> str:
        return "   -  " if value is None else f"{value[0]:6.2f}"

    figures = f"{ratio(row['over_eager'])} eager {ratio(row['over_compile'])} compile"
    share = "" if row["share"] is None else f"{row['share']:.0%}"
    right = "" if row["right"] is None else f"{row['right']}/5"
    seconds = " ".join(f"{name} {row['held'][name]} of {value}" for name, value in row["seconds"].items())
    notes = "; ".join(row["notes"])[:200]
    return (
        f"{passed:4.0f} s {row['name']:45}{figures} {share:>5} {right:>4} ({row['trials']} trials; {seconds}) {notes}"
    )


if __name__ == "__main__":
    typer.run(main)
