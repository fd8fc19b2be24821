"""float16 and bfloat16 by all five kernels: as near to float64 as the gate asks, in every mode, vectors or not."""

from __future__ import annotations

import random

import pytest
import torch
from tests.kernels.five_models import KERNELS

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.gate.judge import judge_buffers, judge_structure, judge_values
from tunebench.tuner.gate.oracle import consult
from tunebench.tuner.kernel import Mode, prepare_model

CPU = find_device("cpu")
TORCH_CPU = torch.device("cpu")
HALF_TYPES = ("float16", "bfloat16")

WHOLE: dict[str, dict[str, int | float]] = {
    "scalar_mul": {"M": 48, "N": 41},
    "conv_min_add_mul": {"batch_size": 2, "in_channels": 8, "out_channels": 16, "height": 10, "width": 18},
    "gemm_div_sum_scale": {"batch_size": 21, "input_size": 96, "hidden_size": 40},
    "gemm_scale_bn": {"batch_size": 21, "in_features": 40, "out_features": 96},
    "gemm_sigmoid_residual": {"batch_size": 21, "input_size": 40, "hidden_size": 96},
}
"""Sizes that vectors of eight divide; one more of everything makes ones that none divides."""

CASES = [(name, dtype, mode) for name in KERNELS for dtype in HALF_TYPES for mode in load_model(name).kernel.modes]


@pytest.mark.parametrize(("name", "dtype", "mode"), CASES)
def test_every_mode(name: str, dtype: str, mode: Mode) -> None:
    kernel = load_model(name).kernel
    for sizes in (WHOLE[name], {key: size + 1 for key, size in WHOLE[name].items()}):
        reference = kernel.reference(sizes, dtype)
        model = prepare_model(reference, mode, TORCH_CPU)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        with torch.no_grad():
            case = consult(model, "half", reference.make_inputs(1, TORCH_CPU))
            tuned = prepare_model(reference, mode, TORCH_CPU, load_model(name), state)
            assert isinstance(tuned, TunedModule)
            problem = tuned.problem(*case.inputs)
            assert problem is not None and problem.dtype == dtype
            space = kernel.space.enumerate(problem, CPU)
            drawn = random.Random(name).randrange(len(space))
            widest = space.nearest({**space[drawn], "vector_width": 8, "output_vector_bytes": 16})
            for number in {drawn, widest}:
                tuned.load_state_dict(state)
                tuned.pin(build_plan(kernel, space[number], problem, CPU, compiler_for(CPU)))
                judge_values(case, judge_structure(case, tuned(*case.inputs)))
                judge_buffers(case, dict(tuned.named_buffers()))
