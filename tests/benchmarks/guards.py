"""What PyTorch looks at before each call of a compiled model: `python -m tests.benchmarks.guards [KERNEL…]`.

How many guards a compiled tuned model has beside its compiled reference's, and how long one look at all of them takes:
the fastest round of many, one after the other, on one core of a CPU. Small sizes, without gradients, the policy
`recorded`, so that the kernel serves and the program has its operator.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch
from tests.benchmarks.host import SIZES
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import kernel_names, load_model

_ROUNDS = 300
_LOOKS = 100


def guards_of(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[int, float]:
    """The number of a compiled model's guards and of the places that they look at, and microseconds for all of them."""
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for _ in range(3):
        compiled(*inputs)
    # A tuned model's own `__call__` is what is compiled; of others PyTorch passes over that of nn.Module.
    entered = type(model).__call__ if type(model).__call__ is not nn.Module.__call__ else type(model).forward
    (entry,) = _debug_get_cache_entry_list(entered.__code__)
    _, *names = entered.__code__.co_varnames[: entered.__code__.co_argcount]
    frame = {"self": model, **dict(zip(names, inputs, strict=False)), "rest": inputs[len(names) :], "named": {}}
    root = entry.guard_manager.root
    assert root.check(frame), "a guard of the call that was just made does not hold"
    fastest = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(_LOOKS):
            root.check(frame)
        fastest = min(fastest, (time.perf_counter_ns() - began) / _LOOKS / 1e3)
    return str(entry.guard_manager).count("+- "), fastest


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", nargs="*", default=kernel_names(), metavar="KERNEL")
    kernels = parser.parse_args().kernels
    set_policy("recorded", wait=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    device = torch.device("cpu")
    print(f"{'kernel':24}{'reference: guards':>20}{'µs':>8}{'tuned: guards':>20}{'µs':>8}")
    for name in kernels:
        factory = load_model(name)
        reference = factory.kernel.reference(SIZES[name])
        inputs = reference.make_inputs(1, device)
        line = f"{name:24}"
        for one in (None, factory):
            model = reference.make_model(0, device, one).eval()
            with torch.no_grad():
                model(*inputs)
                count, taken = guards_of(model, inputs)
            line += f"{count:20}{taken:8.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
