"""A training step of the tuned model beside its reference's, on a GPU.

`python -m tests.benchmarks.training [--json FILE]`, at KernelBench's sizes, gradients on: `model(x)` alone, in eval
mode and in train mode; then forward and backward, the first step of a new model, which runs its kernel, and the later
ones, by whoever won the duel of steps. Medians of events around single calls that were taken in turns, the device
held back until the host has queued the call. The file is written row by row: the same command goes on after a
cut-off.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.rows import Row, Rows, require_gpu
from torch import nn

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.tuner.kernel import Mode

_ROUNDS = 15
_LEAD_CYCLES = 3_000_000


def milliseconds(call: Callable[[], Any]) -> float:
    """What a call takes on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_LEAD_CYCLES)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def in_turns(one: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float]:
    """The medians of two calls."""
    one(), other()
    taken = [(milliseconds(one), milliseconds(other)) for _ in range(_ROUNDS)]
    first, second = zip(*taken, strict=True)
    return statistics.median(first), statistics.median(second)


def _step(model: nn.Module, inputs: list[Any]) -> None:
    model.zero_grad(set_to_none=True)
    model(*inputs).sum().backward()


def _line(row: Row) -> str:
    line = f"{row['kernel']:24}{row['mode']:8}{row['forward'][0]:16.3f}{row['forward'][1]:12.3f}"
    return line + (f"{row['step']:20.3f}{row['first']:10.3f}{row['later']:10.3f}" if "step" in row else "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    require_gpu()
    set_policy(wait=True)
    warnings.simplefilter("ignore")
    print(f"{'kernel':24}{'mode':8}{'forward: eager ms, tuned':>28}{'step: eager ms, first, later':>40}", flush=True)
    with Rows(file, ("kernel", "mode"), _line) as rows:
        for name in kernel_names():
            _measure(name, rows)


def _measure(name: str, rows: Rows) -> None:
    device = torch.device("cuda")
    factory = load_model(name)
    reference = factory.kernel.reference()
    for mode in (Mode.EVAL, Mode.TRAIN):
        if mode in factory.kernel.modes and not rows.has(name, mode.value):
            model = mode.put(reference.make_model(0, device))
            tuned = mode.put(reference.make_model(0, device, factory))
            inputs = reference.make_inputs(1, device)
            forward = in_turns(partial(model, *inputs), partial(tuned, *inputs))
            row: Row = {"kernel": name, "mode": mode.value, "forward": forward}
            if any(True for _ in model.parameters()):
                _step(model, inputs)
                first = milliseconds(partial(_step, tuned, inputs))
                steps = in_turns(partial(_step, model, inputs), partial(_step, tuned, inputs))
                row |= {"step": steps[0], "first": first, "later": steps[1]}
            rows.add(row)
            del model, tuned, inputs
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
