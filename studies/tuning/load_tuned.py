"""Loads tuned models as their users do, and shows that they agree with their references.

`python -m tunebench.studies.tuning.load_tuned STUDY...`
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import cast

import torch

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.study_file import request_of
from tunebench.tuner.device import find_device
from tunebench.tuner.gate.oracle import consult
from tunebench.tuner.gate.values import ROOT
from tunebench.tuner.kernel import prepare_model


def main() -> int:
    """Run each study's model in each mode on fresh inputs; 1 where one is outside the tolerance."""
    parser = argparse.ArgumentParser(description="Load tuned models and compare them with their references.")
    parser.add_argument("study", nargs="+", help="a study file or a kernel's name")
    parser.add_argument("--db", help="the database to load from")
    options = parser.parse_args()
    set_policy(wait=True)
    if options.db:
        os.environ["TUNEBENCH_DB"] = options.db
    differing = [study for study in options.study if not _agrees(study)]
    return 1 if differing else 0


def _agrees(study: str) -> bool:
    request = request_of(study)
    factory = load_model(request.kernel)
    reference = factory.kernel.reference(request.sizes, request.dtype)
    where = find_device(request.device).torch_device
    good = True
    for mode in request.modes or factory.kernel.modes:
        original = prepare_model(reference, mode, where)
        tuned = cast(TunedModule, prepare_model(reference, mode, where, factory, original.state_dict()))
        with torch.no_grad():
            case = consult(original, "fresh inputs", reference.make_inputs(seed=12345, device=where))
            expected = case.output[ROOT]
            error, bound = expected.errors_of(tuned(*case.inputs)).max_relative, expected.bound
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
