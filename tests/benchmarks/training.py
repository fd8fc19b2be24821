"""A training step of the tuned model beside its reference's, on a GPU.

`python -m tests.benchmarks.training [--json FILE]`, at KernelBench's sizes, gradients on: `model(x)` alone, in eval
mode and in train mode; then forward and backward, the first step of a new model, which runs its kernel, and the later
ones, where the reference trains. Medians of events around single calls that were taken in turns, the device held back
until the host has queued the call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    rows: list[dict[str, Any]] = []
    set_policy(wait=True)
    warnings.simplefilter("ignore")
    device = torch.device("cuda")
    print(f"{'kernel':24}{'mode':8}{'forward: eager ms, tuned':>28}{'step: eager ms, first, later':>40}")
    for name in kernel_names():
        factory = load_model(name)
        reference = factory.kernel.reference()
        for mode in (Mode.EVAL, Mode.TRAIN):
            if mode not in factory.kernel.modes:
                continue
            model = mode.put(reference.make_model(0, device))
            tuned = mode.put(reference.make_model(0, device, factory))
            inputs = reference.make_inputs(1, device)
            forward = in_turns(partial(model, *inputs), partial(tuned, *inputs))
            line = f"{name:24}{mode.value:8}{forward[0]:16.3f}{forward[1]:12.3f}"
            rows.append({"kernel": name, "mode": mode.value, "forward": forward})
            if any(True for _ in model.parameters()):
                _step(model, inputs)
                first = milliseconds(partial(_step, tuned, inputs))
                steps = in_turns(partial(_step, model, inputs), partial(_step, tuned, inputs))
                line += f"{steps[0]:20.3f}{first:10.3f}{steps[1]:10.3f}"
                rows[-1] |= {"step": steps[0], "first": first, "later": steps[1]}
            print(line, flush=True)
            del model, tuned, inputs
            torch.cuda.empty_cache()
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
