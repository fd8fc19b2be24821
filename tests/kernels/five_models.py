"""The five kernels' models beside their references, at sizes that a test can afford."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device

CPU = find_device("cpu")
SIZES: dict[str, dict[str, int | float]] = {
    "scalar_mul": {"M": 5, "N": 7},
    "conv_min_add_mul": {"batch_size": 2, "in_channels": 3, "out_channels": 4, "height": 7, "width": 6},
    "gemm_div_sum_scale": {"batch_size": 6, "input_size": 7, "hidden_size": 8},
    "gemm_scale_bn": {"batch_size": 6, "in_features": 7, "out_features": 8},
    "gemm_sigmoid_residual": {"batch_size": 6, "input_size": 7, "hidden_size": 8},
}
KERNELS = kernel_names()


def pair(
    name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", *, training: bool = False
) -> tuple[nn.Module, TunedModule, tuple[Any, ...]]:
    """A reference, the tuned model with its parameters, and inputs for both."""
    kernel = load_model(name).kernel
    reference = kernel.reference(SIZES[name])
    place = torch.device(device)
    model = reference.make_model(3, place).to(dtype).train(training)
    tuned = reference.make_model(3, place, load_model(name)).to(dtype).train(training)
    tuned.load_state_dict(model.state_dict())
    assert isinstance(tuned, TunedModule)
    inputs = tuple(
        value.to(dtype) if isinstance(value, torch.Tensor) else value for value in reference.make_inputs(5, place)
    )
    return model, tuned, inputs


def pin(model: TunedModule, configuration: Configuration, x: torch.Tensor) -> None:
    """Run a model on the CPU under a configuration."""
    problem = model.problem(x)
    assert problem is not None
    model.pin(build_plan(model.kernel, configuration, problem, CPU, compiler_for(CPU)))


def with_gradient(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same inputs, as leaves of a graph."""
    return tuple(
        value.detach().clone().requires_grad_() if isinstance(value, torch.Tensor) else value for value in inputs
    )


def ran_a_kernel(tuned: TunedModule) -> bool:
    """Whether any call so far was served by a kernel."""
    return any(choice.configuration is not None for choice in tuned.choices.values())
