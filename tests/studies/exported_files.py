"""Files as `tunebench export` writes them, of the five kernels at sizes that a test can afford."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from five_models import SIZES
from hopper import HOPPER
from torch import nn

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.shipped import ShippedResult
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.writing.export.hub import project_files
from tunebench.studies.writing.export.write import Evidence, Layout, file_text, layout_of
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Problem

BEST: dict[str, dict[str, Value]] = {
    "scalar_mul": {},
    "conv_min_add_mul": {"convolution": "implicit_gemm"},
    "gemm_div_sum_scale": {"algorithm": "column_sums"},
    "gemm_scale_bn": {"product": "fused"},
    "gemm_sigmoid_residual": {"product": "fused", "weight_parts": "int8", "split_threads": 512},
}
"""Forms that win on an H200; the other tunables as they come."""


def exported(
    name: str,
    values: Mapping[str, Value],
    device: Device = HOPPER,
    options: Mapping[str, str] | None = None,
    sizes: Mapping[str, int | float] | None = None,
) -> str:
    """The text of a file: these tunables, the others as in the default, and options that depend on the device."""
    return file_text(*_found(name, values, device, options, sizes))


def exported_project(name: str) -> dict[str, str]:
    """The files of a project of Hugging Face's kernel-builder, in the form that wins on an H200."""
    options = {"precision": "tf32"} if name == "conv_min_add_mul" else {}
    return project_files(*_found(name, BEST[name], HOPPER, options, None), SIZES[name])


def _found(
    name: str,
    values: Mapping[str, Value],
    device: Device,
    options: Mapping[str, str] | None,
    sizes: Mapping[str, int | float] | None,
) -> tuple[type[TunedModule], Evidence, Layout]:
    model = load_model(name)
    kernel = model.kernel
    mode = Mode.TRAIN if Mode.TRAIN in kernel.modes else Mode.EVAL
    layout = layout_of(model, kernel.reference(sizes or SIZES[name]), mode)
    assert layout.problem is not None
    problem = Problem(layout.problem.axes, "float32", {**layout.problem.options, **(options or {})})
    fixed = {tunable: [value] for tunable, value in {**kernel.space.default, **values}.items()}
    (configuration,) = kernel.space.restrict(fixed).enumerate(problem, device)
    result = ShippedResult(
        axes=dict(problem.axes),
        dtype=problem.dtype,
        options=dict(problem.options),
        configuration=dict(configuration),
        speedups={"reference": [2, 1.9, 2.1]},
        median_ms=1,
        error_multiple=0.5,
        conditions={},
    )
    return model, Evidence(result, device.name, "sm_90", "trial 1", kernel.digest), layout


def loaded(
    name: str, text: str, extensions: str = "", device: str = "cpu", sizes: Mapping[str, int | float] | None = None
) -> tuple[dict[str, Any], nn.Module, Any, tuple[Any, ...]]:
    """The reference and the file in one namespace, as KernelBench runs them: its models, and inputs.

    Args:
        extensions: the folder that torch builds in; where it is left out, the one that the environment names.
    """
    extensions = extensions or os.environ["TORCH_EXTENSIONS_DIR"]
    reference = load_model(name).kernel.reference(sizes or SIZES[name])
    context: dict[str, Any] = {}
    exec(reference.path.read_text(encoding="utf-8"), context)
    before = dict(context)
    # KernelBench puts these lines before the first.
    exec(f"import os\nos.environ['TORCH_EXTENSIONS_DIR'] = '{extensions}'\n" + text, context)
    assert all(context[known] is value for known, value in before.items()), "a name of the harness has another meaning"
    model = reference.make_model(3, torch.device(device))
    made = reference.make_model(3, torch.device(device), context["ModelNew"])
    return context, model, made, reference.make_inputs(5, torch.device(device))
