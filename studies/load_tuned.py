"""Loads tuned models as their users do, and shows that they agree with their references.

`python -m tunebench.studies.load_tuned STUDY...`
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import cast

import torch

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tune import request_of
from tunebench.tuner.device import find_device
from tunebench.tuner.gate.comparison import REFERENCE_MULTIPLE, TOLERANCE, compare, scale_of


def main() -> int:
    """Run each study's model in each mode on fresh inputs; 1 where one is outside the tolerance."""
    parser = argparse.ArgumentParser(description="Load tuned models and compare them with their references.")
    parser.add_argument("study", nargs="+", help="a study file or a kernel's name")
    parser.add_argument("--db", help="the database to load from")
    options = parser.parse_args()
    if options.db:
        os.environ["TUNEBENCH_DB"] = options.db
    differing = [study for study in options.study if not _agrees(study)]
    return 1 if differing else 0


def _agrees(study: str) -> bool:
    request = request_of(study, {})
    factory = load_model(request.kernel)
    reference = factory.kernel.reference(request.sizes)
    where = find_device(request.device).torch_device
    good = True
    for mode in request.modes or factory.kernel.modes:
        original = mode.put(reference.make_model(0, where))
        tuned = mode.put(cast(TunedModule, reference.make_model(0, where, factory)))
        tuned.load_state_dict(original.state_dict())
        exact = mode.put(reference.make_model(0, where))
        exact.load_state_dict(original.state_dict())
        inputs = reference.make_inputs(seed=12345, device=where)
        with torch.no_grad():
            wide = [x.double() if isinstance(x, torch.Tensor) else x for x in inputs]
            exact.double()
            expected = exact(*wide)
            output, eager = tuned(*inputs), original(*inputs)
        scale = scale_of(expected)
        own = compare(eager, expected, scale, bound=float("inf")).max_relative
        bound = max(TOLERANCE[output.dtype], REFERENCE_MULTIPLE * own)
        error = compare(output, expected, scale, bound).max_relative
        agrees = error <= bound
        good &= agrees
        (choice,) = tuned.choices.values()
        print(
            f"{factory.kernel.name} ({mode}) {'agrees' if agrees else 'DIFFERS'}: error {error:.1e} of the output's "
            f"size, allowed {bound:.1e}; its configuration is from tier '{choice.tier}'"
        )
    return good


if __name__ == "__main__":
    sys.exit(main())
