"""One kernel's model in a half type beside its reference, judged as the gate judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device
from tunebench.tuner.gate.judge import judge_buffers, judge_structure, judge_values
from tunebench.tuner.gate.oracle import consult
from tunebench.tuner.gate.values import Values
from tunebench.tuner.kernel import Mode, prepare_model
from tunebench.tuner.space import ValidSpace

HALF_TYPES = ("float16", "bfloat16")

# Vectors of eight divide these; of one more of everything none do.
WHOLE: dict[str, dict[str, int | float]] = {
    "scalar_mul": {"M": 48, "N": 41},
    "conv_min_add_mul": {"batch_size": 2, "in_channels": 16, "out_channels": 16, "height": 10, "width": 18},
    "gemm_div_sum_scale": {"batch_size": 21, "input_size": 96, "hidden_size": 40},
    "gemm_scale_bn": {"batch_size": 21, "in_features": 40, "out_features": 96},
    "gemm_sigmoid_residual": {"batch_size": 21, "input_size": 40, "hidden_size": 96},
}


def judge_half_type(
    name: str,
    dtype: str,
    mode: Mode,
    sizes: Mapping[str, int | float],
    device: Device,
    pick: Callable[[ValidSpace], Iterable[int]],
) -> int:
    """Judge those configurations of a kernel that `pick` picks; StageRefused for the first that is wrong.

    Returns:
        How many were judged.
    """
    kernel, where = load_model(name).kernel, device.torch_device
    reference = kernel.reference(sizes, dtype)
    model = prepare_model(reference, mode, where)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    judged = 0
    with torch.no_grad():
        case = consult(model, "drawn", reference.make_inputs(1, where))
        tuned = prepare_model(reference, mode, where, load_model(name), state)
        assert isinstance(tuned, TunedModule)
        problem = tuned.problem(*case.inputs)
        assert problem is not None and problem.dtype == dtype
        space = kernel.space.enumerate(problem, device)
        for number in pick(space):
            tuned.load_state_dict(state)
            plan = build_plan(kernel, space[number], problem, device, compiler_for(device))
            tuned.make_ready(plan)
            tuned.pin(plan)
            judge_values(case, judge_structure(case, Values.of(tuned(*case.inputs))))
            judge_buffers(case, dict(tuned.named_buffers()))
            judged += 1
    return judged
