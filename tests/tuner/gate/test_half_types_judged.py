"""Half types under the gate: what is summed in float passes, what is summed in the half type does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tunebench.tuner.gate.judge import judge_buffers, judge_structure, judge_values
from tunebench.tuner.gate.oracle import consult
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.values import Values
from tunebench.tuner.reference import load_reference

CPU = torch.device("cpu")
SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gemm = nn.Linear(8192, 48)

    def forward(self, x):
        return self.gemm(x)

def get_inputs():
    return [torch.rand(16, 8192)]

def get_init_inputs():
    return []
"""


def summed_in_float(x: torch.Tensor, gemm: nn.Linear) -> torch.Tensor:
    return (x.float() @ gemm.weight.float().T + gemm.bias.float()).to(x.dtype)


def summed_in_the_half_type(x: torch.Tensor, gemm: nn.Linear) -> torch.Tensor:
    sums = gemm.bias.expand(len(x), -1).clone()
    for column, weight in zip(x.unbind(1), gemm.weight.unbind(1), strict=True):
        sums += column[:, None] * weight
    return sums


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("answer", "sound"), [(summed_in_float, True), (summed_in_the_half_type, False)])
def test_sums_over_a_depth_of_8192(
    dtype: str, answer: Callable[[torch.Tensor, nn.Linear], torch.Tensor], sound: bool, tmp_path: Path
) -> None:
    (tmp_path / "reference.py").write_text(SOURCE, encoding="utf-8")
    reference = load_reference(tmp_path / "reference.py", dtype=dtype)
    model = reference.make_model(0, CPU)
    with torch.no_grad():
        case = consult(model, "drawn", reference.make_inputs(1, CPU))
        gemm = model.gemm
        assert isinstance(gemm, nn.Linear)
        output = judge_structure(case, Values.of(answer(*case.inputs, gemm)))
        if sound:
            assert judge_values(case, output).max_relative < 2 * case.own_error
        else:
            with pytest.raises(StageRefused, match="of the output's size"):
                judge_values(case, output)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_that_rest_in_a_half_type(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    model = nn.BatchNorm1d(48).to(dtype)
    with torch.no_grad():
        case = consult(model, "one step", (torch.randn(32, 48, dtype=dtype),))
    moved = {name: buffer.to(dtype) for name, buffer in case.expected_buffers.items() if buffer.dim()}
    unmoved = dict(nn.BatchNorm1d(48).to(dtype).named_buffers())
    judge_buffers(case, {**unmoved, **moved, "num_batches_tracked": torch.tensor(1)})
    with pytest.raises(StageRefused, match="buffer 'running_mean'"):
        judge_buffers(case, {**unmoved, "num_batches_tracked": torch.tensor(1)})
    with pytest.raises(StageRefused, match="buffer 'num_batches_tracked'"):
        judge_buffers(case, {**unmoved, **moved})
