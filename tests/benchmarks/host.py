"""What a warm forward costs the host, where the device is never waited for: `python -m tests.benchmarks.host`.

Small problems, so that the device is always done before the host: a tuned model's forward against its reference's, as a
ratio of medians that were taken in turns. It runs on the CPU too, but there a launch is the kernel's whole run, so that
only a GPU tells.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tunebench.kernels.runtime.policy import Policy, set_policy
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.tuner.gate.harness import synchronise

_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES: dict[str, dict[str, int | float]] = {
    "scalar_mul": {"M": 64, "N": 64},
    "conv_min_add_mul": {"batch_size": 2, "height": 16, "width": 16},
    "gemm_div_sum_scale": {"batch_size": 64, "input_size": 256, "hidden_size": 256},
    "gemm_scale_bn": {"batch_size": 128, "in_features": 256, "out_features": 256},
    "gemm_sigmoid_residual": {"batch_size": 128, "input_size": 256, "hidden_size": 256},
}
_ROUNDS = 40
_CALLS = 25


def host_us(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median microseconds that the host spends in each call, the calls taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            synchronise(_DEVICE)
            for _ in range(_CALLS):
                began = time.perf_counter_ns()
                call()
                taken[name].append((time.perf_counter_ns() - began) / 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", choices=list(Policy), default=Policy.BEST)
    set_policy(parser.parse_args().policy, wait=True)
    print(
        f"{'kernel':24}{'mode':8}{'eager µs':>10}{'tuned µs':>10}{'ratio':>8}  gradients enabled: eager, tuned, ratio"
    )
    for name in kernel_names():
        factory = load_model(name)
        reference = factory.kernel.reference(SIZES[name])
        for mode in factory.kernel.modes:
            model = mode.put(reference.make_model(0, _DEVICE))
            tuned = mode.put(reference.make_model(0, _DEVICE, factory))
            inputs = reference.make_inputs(1, _DEVICE)
            calls: dict[str, Callable[[], Any]] = {
                "eager": partial(model, *inputs),
                "tuned": partial(tuned, *inputs),
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with torch.no_grad():
                    without = host_us(calls)
                columns = _columns(without), _columns(host_us(calls))
            print(f"{name:24}{mode.value:8}{columns[0]}{'':12}{columns[1]}")


def _columns(taken: dict[str, float]) -> str:
    return f"{taken['eager']:10.1f}{taken['tuned']:10.1f}{taken['tuned'] / taken['eager']:8.2f}"


if __name__ == "__main__":
    main()
