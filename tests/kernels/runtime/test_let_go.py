"""A tuned module's tensors go with the last name for it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from tunebench.kernels.gemm_scale_bn.model import ModelNew
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("graph", ["none", "kept", "run"])
def test_a_modules_tensors_go_with_the_last_name_for_it(graph: str, is_training: bool) -> None:
    model, x, device = ModelNew(8, 12, (12,)).train(is_training), torch.randn(5, 8), find_device("cpu")
    problem, kernel = model.problem(x), model.kernel
    assert problem is not None
    configuration = kernel.space.default_for(problem, device)
    model.pin(build_plan(kernel, configuration, problem, device, compiler_for(device)))
    tensors = [weakref.ref(one) for one in (*model.parameters(), *model.buffers())]
    gc.collect()
    gc.disable()
    try:
        with torch.set_grad_enabled(graph != "none"):
            for _ in range(2):
                result = model(x)
        if graph == "run":
            result.sum().backward()
        del model
        if graph == "kept":
            result.sum().backward()  # the graph holds what it needs
            assert tensors[0]().grad is not None  # type: ignore[union-attr]
        del result
        assert not any(one() is not None for one in tensors)
    finally:
        gc.enable()


def test_a_copy_that_goes_leaves_the_modules_calls_known() -> None:
    model, x = ModelNew(8, 12, (12,)).eval(), torch.randn(5, 8)
    with torch.no_grad():
        model(x)
        known = model._known.latest
        assert known
        model._replicate_for_data_parallel()
        model(x)
    assert model._known.latest == known
