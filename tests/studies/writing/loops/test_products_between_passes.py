"""Products between passes: what is built ahead is what a call runs, and is built for Hopper in every type."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from between_passes import between_passes
from hopper import HOPPER

from tunebench.kernels.blocks import loops
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Problem


def products_of(plan: Plan) -> set[loops.ProductSizes]:
    return {one for key in plan._made for one in key if isinstance(one, loops.ProductSizes)}


@pytest.mark.slow
def test_products_are_built_before_the_first_call(tmp_path: Path, nvrtc: NvrtcCompiler) -> None:
    model = between_passes(tmp_path)
    reference = model.kernel.reference({}, "float32")
    original, tuned = (reference.make_model(0, torch.device("cpu"), *one) for one in ((), (model,)))
    (x,) = reference.make_inputs(0, torch.device("cpu"))
    problem, device = tuned.problem(x), find_device("cpu")
    space = model.kernel.space
    assert space.default_for(problem, device)[loops.PRODUCTS] == "library"
    assert space.default_for(problem, HOPPER)[loops.PRODUCTS] == "exact"
    kernels = Configuration({**space.default_for(problem, device), loops.PRODUCTS: "exact"})
    plan = build_plan(model.kernel, kernels, problem, device, compiler_for(device))
    model.make_ready(plan)
    ahead = products_of(plan)
    lies = {one.in_columns for one in ahead}
    assert len(ahead) == 4 and None in lies and loops.InColumns(False, True) in lies
    tuned.pin(plan)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), original(x), rtol=1e-5, atol=1e-5)
    assert products_of(plan) == ahead
    assert all(plan.once(loops._own_product, sizes) is None for sizes in ahead)  # no CPU has such a kernel
    for sizes in {one.in_columns: one for one in ahead}.values():
        large = sizes._replace(rows=4096, depth=1024, features=1024)
        for way, dtype in (("exact", "float32"), ("fast", "float32"), ("exact", "bfloat16")):
            found = loops.product_kernel(large, way, Problem({}, dtype, {}), HOPPER)
            if found is None:
                assert dtype == "bfloat16" and sizes.in_columns is not None  # of two inputs in halves: torch's
            else:
                kernel, configuration, problem = found
                assert configuration["product"] == "fused"
                assert nvrtc.compile(kernel.variant(configuration, problem, "sm_90")).figures
