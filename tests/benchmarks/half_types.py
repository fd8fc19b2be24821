"""Half types and autocast, on a GPU: `python -m tests.benchmarks.half_types [--json FILE]`.

A tuned model over its reference at KernelBench's sizes, without gradients: both in float16 and in bfloat16, and both in
float32 under autocast to each. Medians over rounds of the reference's time over the tuned model's on the device with
99 % intervals, in turns; who serves, and the time of the first call, builds and a duel included. The file
is written row by row: the same command goes on after a cut-off.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.problems import device_ratios
from tests.benchmarks.rows import Row, Rows, require_gpu
from torch import nn

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.tuner.kernel import Mode

_DTYPES = ("float16", "bfloat16")


def cases(kernel: Any) -> Iterator[tuple[str, Any, Callable[[], AbstractContextManager[Any]]]]:
    """The name of each column, the reference in its type, and what is around a call."""
    for dtype in _DTYPES:
        yield dtype, kernel.reference(dtype=dtype), nullcontext
    for dtype in _DTYPES:
        yield f"autocast {dtype}", kernel.reference(), partial(torch.autocast, "cuda", getattr(torch, dtype))


def _call(model: nn.Module, inputs: tuple[Any, ...], around: Callable[[], AbstractContextManager[Any]]) -> None:
    """One call in an autocast of its own, which casts the weights: within one, PyTorch keeps those of the reference."""
    with torch.no_grad(), around():
        model(*inputs)


def _line(row: Row) -> str:
    value, low, high = row["over_eager"]
    over = f"{value:.3f}× [{low:.3f}, {high:.3f}]"
    told = f"{row['kernel']:24}{row['mode']:8}{row['type']:20}{over:26}{row['served']:12}"
    return f"{told}first {row['first_s']:5.2f} s"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    require_gpu()
    set_policy(wait=True)
    warnings.simplefilter("ignore")
    with Rows(file, ("kernel", "mode", "type"), _line) as rows:
        for name in kernel_names():
            _measure(name, rows)


def _measure(name: str, rows: Rows) -> None:
    device = torch.device("cuda")
    factory = load_model(name)
    for mode in (one for one in factory.kernel.modes if one is not Mode.TRAIN):
        for case, reference, around in cases(factory.kernel):
            if not rows.has(name, mode.value, case):
                model = mode.put(reference.make_model(0, device))
                tuned = mode.put(reference.make_model(0, device, factory))
                inputs = reference.make_inputs(1, device)
                calls = {
                    "reference": partial(_call, model, inputs, around),
                    "tuned": partial(_call, tuned, inputs, around),
                }
                torch.cuda.synchronize()
                began = time.perf_counter()
                calls["tuned"]()
                torch.cuda.synchronize()
                first_s = time.perf_counter() - began
                ratio = device_ratios(calls)
                over = ratio["tuned"]
                (choice,) = tuned.choices.values()  # type: ignore[operator, union-attr]
                served = "reference" if choice.configuration is None else choice.tier.value
                told = {"kernel": name, "mode": mode.value, "type": case, "served": served, "first_s": first_s}
                rows.add({**told, "over_eager": [over.value, over.low, over.high], "reason": choice.reason})
                del model, tuned, inputs, calls
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
