"""What a tuned model keeps of its speed inside compiled programs, on a GPU.

`python -m tests.benchmarks.compiled [KERNEL…] [--json FILE]` prints, at KernelBench's sizes without gradients, how many
times faster than the eager reference are the compiled reference, the tuned model, and the tuned model compiled, also
with `mode="reduce-overhead"`. Medians of events around single calls that were taken in turns. The file is
written row by row: the same command goes on after a cut-off.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.rows import Row, Rows, require_gpu
from torch import nn

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.tuner.kernel import Mode

_ROUNDS = 30
_LEAD_CYCLES = 3_000_000
_COLUMNS = ("compiled reference", "tuned", "tuned, compiled", "tuned, reduce-overhead")


def milliseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of each call on the device, the calls taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_LEAD_CYCLES)  # the host is ahead when the call begins
            began.record()
            call()
            ended.record()
            ended.synchronize()
            taken[name].append(began.elapsed_time(ended))
    return {name: statistics.median(values) for name, values in taken.items()}


def _called(model: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    def call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return model(*inputs)

    for _ in range(4):
        call()
    return call


def _line(row: Row) -> str:
    taken = row["milliseconds"]
    ratios = "".join(f"{taken['eager'] / taken[column]:23.2f}×" for column in _COLUMNS)
    return f"{row['kernel']:24}{row['mode']:8}{taken['eager']:10.3f}{ratios}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", nargs="*", default=kernel_names(), metavar="KERNEL")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    require_gpu()
    set_policy(wait=True)
    warnings.simplefilter("ignore")
    print(f"{'kernel':24}{'mode':8}{'eager ms':>10}" + "".join(f"{name:>24}" for name in _COLUMNS), flush=True)
    with Rows(asked.json, ("kernel", "mode"), _line) as rows:
        for name in asked.kernels:
            _measure(name, rows)


def _measure(name: str, rows: Rows) -> None:
    device = torch.device("cuda")
    factory = load_model(name)
    reference = factory.kernel.reference()
    for mode in (one for one in factory.kernel.modes if one is not Mode.TRAIN):
        if not rows.has(name, mode.value):
            torch._dynamo.reset()
            model = mode.put(reference.make_model(0, device))
            tuned = mode.put(reference.make_model(0, device, factory))
            inputs = reference.make_inputs(1, device)
            with torch.no_grad():
                taken = milliseconds(
                    {
                        "eager": _called(model, inputs),
                        _COLUMNS[0]: _called(torch.compile(model), inputs),
                        _COLUMNS[1]: _called(tuned, inputs),
                        _COLUMNS[2]: _called(torch.compile(tuned, fullgraph=True), inputs),
                        _COLUMNS[3]: _called(torch.compile(tuned, fullgraph=True, mode="reduce-overhead"), inputs),
                    }
                )
            rows.add({"kernel": name, "mode": mode.value, "milliseconds": taken})


if __name__ == "__main__":
    main()
