"""Half types and autocast, on a GPU: `python -m tests.benchmarks.half_types [--json FILE]`.

A tuned model over its reference at KernelBench's sizes, without gradients: both in float16 and in bfloat16, and both in
float32 under autocast to each. Medians over rounds of the reference's time over the tuned model's on the device with
99 % intervals, in turns; who serves, and the time of the first call, builds and a duel included.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.problems import device_ratios
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    set_policy(wait=True)
    warnings.simplefilter("ignore")
    device = torch.device("cuda")
    rows = []
    for name in kernel_names():
        factory = load_model(name)
        for mode in (one for one in factory.kernel.modes if one is not Mode.TRAIN):
            for case, reference, around in cases(factory.kernel):
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
                rows.append({**told, "over_eager": [over.value, over.low, over.high], "reason": choice.reason})
                print(f"{name:24}{mode.value:8}{case:20}{over!s:26}{served:12}first {first_s:5.2f} s", flush=True)
                del model, tuned, inputs, calls
                torch.cuda.empty_cache()
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
