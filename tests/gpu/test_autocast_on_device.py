"""Autocast on a GPU: each kernel in the type that is cast to, as exact as its reference. Skips without a GPU."""

from __future__ import annotations

import pytest
import torch
from five_models import KERNELS, ran_a_kernel
from under_autocast import SIZES, require_as_exact

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.tuned_module import TunedModule

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_type_and_error_are_the_references(name: str, frozen: bool, dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    reference = load_model(name).kernel.reference(SIZES[name])
    model, tuned = (reference.make_model(3, device, one).eval() for one in (None, load_model(name)))
    assert isinstance(tuned, TunedModule)
    if frozen:
        tuned.freeze()
    inputs = tuple(reference.make_inputs(5, device))
    for _ in range(2):
        require_as_exact(model, tuned, inputs, dtype)
    assert ran_a_kernel(tuned), tuned.choices
