"""First calls on a GPU that the reference serves while it is watched are described as a trace describes them."""

from __future__ import annotations

import pytest
import torch
from random_modules import check_random_module
from sample_kernel import WriteKernel

from tunebench.kernels.runtime import dispatch
from tunebench.kernels.runtime.reference_call import trace_reference, watch_reference
from tunebench.kernels.runtime.registry import kernel_names, load_model

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.mark.parametrize("name", kernel_names())
def test_shipped_kernels_are_watched_as_they_are_traced(name: str) -> None:
    factory = load_model(name)
    reference = factory.kernel.reference()
    sizes = {key: min(size, 64) for key, size in reference.sizes.items() if isinstance(size, int)}
    reference = reference.resized(sizes)
    for mode in factory.kernel.modes:
        model = mode.put(reference.make_model(0, CUDA, factory))
        inputs = reference.make_inputs(1, CUDA)
        expected = trace_reference(model, inputs)
        for enabled in (False, True):
            with torch.set_grad_enabled(enabled):
                _, found = watch_reference(model, inputs)
            assert (found.operations, found.settings) == (expected.operations, expected.settings)
            assert (found.written, found.moved, found.obstacle) == (expected.written, expected.moved, expected.obstacle)
            assert (found.output, found.dtypes) == (expected.output, expected.dtypes)


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_gradients_are_the_references(write_kernel: WriteKernel, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "is_quick_to_trace", lambda: False)
    for seed in range(first, first + 20):
        assert check_random_module(write_kernel, seed, CUDA, wait=False) == ""
