"""Products between passes by kernels of ours, on CUDA. Skips without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from between_passes import between_passes

from tunebench.kernels.blocks import loops
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device

pytestmark = pytest.mark.gpu

ALLOWED = {"float32": 1e-4, "bfloat16": 2e-2}


@pytest.mark.parametrize("dtype", ALLOWED)
def test_products_between_passes_are_right(cuda: Device, dtype: str, tmp_path: Path) -> None:
    model = between_passes(tmp_path)
    sizes = {"batch_size": 4, "rows": 136}
    reference = model.kernel.reference(sizes, dtype)
    original, tuned = (reference.make_model(0, torch.device("cuda"), *one) for one in ((), (model,)))
    (x,) = reference.make_inputs(0, torch.device("cuda"))
    with torch.no_grad():
        wanted = original.double()(x.double())
        for way in ("exact", "fast", "library") if dtype == "float32" else ("exact", "library"):
            problem = tuned.problem(x)
            assert problem is not None, tuned.reason
            chosen = tuned.kernel.space.choose({loops.PRODUCTS: way}, problem, cuda)
            plan = build_plan(tuned.kernel, chosen, problem, cuda, compiler_for(cuda))
            model.make_ready(plan)
            tuned.pin(plan)
            difference = torch.linalg.vector_norm(tuned(x).double() - wanted) / torch.linalg.vector_norm(wanted)
            assert difference < ALLOWED[dtype], way
            if way != "library" and dtype == "float32":
                made = [
                    one for key, one in plan._made.items() if any(isinstance(part, loops.ProductSizes) for part in key)
                ]
                assert len(made) == 4 and None not in made
