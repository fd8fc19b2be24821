"""The exam: its problems are files, written and measured as they are; its tables have means by class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.convolutions import convolutions
from benchmarks.exam.problems import problems
from benchmarks.exam.table import details, geometric_mean, summary

from tunebench.tuner.reference import load_reference

RELU = """
import torch
from torch import nn

batch_size = 4096
dim = 786432


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def get_inputs():
    return [torch.rand(batch_size, dim)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_a_large_problem_is_measured_at_part_of_its_batch(tmp_path: Path) -> None:
    level = tmp_path / "KernelBench" / "level1"
    level.mkdir(parents=True)
    (level / "19_ReLU.py").write_text(RELU.replace("4096", "8"), encoding="utf-8")
    every = problems(tmp_path, tmp_path / "kernels")
    (relu,) = problems(tmp_path, tmp_path / "kernels", ["level1"])
    assert relu in every and len(every) > 100
    relu.write()
    assert (relu.block, relu.sizes(1 << 37), relu.is_kernelbenchs) == ("pointwise", {}, True)
    (relu.path / "reference.py").write_text(RELU, encoding="utf-8")
    assert relu.sizes(1 << 37) == {"batch_size": 1024}


def test_every_convolution_is_a_problem_of_its_own_that_runs() -> None:
    every, meta, outputs = list(convolutions()), torch.device("meta"), {}
    for one in every:
        reference = load_reference(Path(f"{one.name}.py"), text=one.file("bfloat16"))
        result = reference.make_model(0, meta)(*reference.make_inputs(0, meta))
        assert isinstance(result, torch.Tensor) and result.dtype == torch.bfloat16
        outputs[one.name] = tuple(result.shape)
    assert len(outputs) == len(every) == 108
    assert outputs["32x256x14_to_256"] == (32, 256, 14, 14)
    assert outputs["resnet50_128_128_3_2_56_1"] == (32, 128, 28, 28)


def test_tables_have_means_by_class() -> None:
    assert geometric_mean([1.0, 4.0]) == 2.0
    row = {
        "name": "level1 19_ReLU",
        "group": "level1",
        "block": "pointwise",
        "over_eager": [2.0, 1.9, 2.1],
        "over_compile": [1.0, 0.99, 1.01],
        "share": 0.93,
        "bound": "read rate",
        "right": 5,
        "kernelbench_eager_ms": 3.0,
        "kernelbench_tuned_ms": 1.5,
    }
    other = {**row, "name": "level1 20_LeakyReLU", "over_eager": [8.0, 7.9, 8.1], "over_compile": None, "right": 4}
    slow = {**row, "name": "level1 21_Sigmoid", "over_eager": [1.2, 1.1, 1.3], "over_compile": [0.9, 0.89, 0.91]}
    assert "| level1 pointwise | 3 | 2 of 3 | 2.68 | 0.949 | 1 | 1 | 2 |" in summary([row, other, slow])
    assert "| level1 19_ReLU | pointwise | 2 [1.9, 2.1] | 1 [0.99, 1.01] | 93% of read rate | 5 | 2 |" in details([row])
