"""A kernel that takes positions and a mask beside floating-point tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from five_models import ran_a_kernel

from tunebench.kernels.runtime.registry import import_model
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.problem import Problem

PICK = """
import torch
from torch import nn
from tunebench import Kernel, SearchSpace, Tunable, TunedModule

SOURCE = '''
extern "C" __global__ void pick(const scalar_t* scores, const long long* target, const bool* mask,
                                const scalar_t* weight, scalar_t* y, long long rows, long long classes) {
    const long long row = blockIdx.x * 64LL + threadIdx.x;
    if (row < rows) {
        y[row] = mask[row] ? scores[row * classes + target[row]] * weight[target[row]] : scalar_t(0);
    }
}
'''
AXES = {"scores": ("rows", "classes"), "weight": ("classes",), **dict.fromkeys(("target", "mask", "return"), ("rows",))}

class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(classes))

    def forward(self, scores, target, mask):
        return scores.gather(1, target[:, None])[:, 0] * self.weight[target] * mask

class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(
        __file__, SearchSpace((Tunable("unused", (1, 2)),)), source=SOURCE, axes=AXES, indices=("target", "mask"))

    def tuned_forward(self, plan, scores, target, mask):
        rows, classes = scores.shape
        y = scores.new_empty(rows)
        inputs = (scores, target, mask, self.weight, y, rows, classes)
        plan.launch("pick", *inputs, blocks=-(-rows // 64), threads=64)
        return y

rows = 70
classes = 9

def get_inputs():
    return [torch.randn(rows, classes), torch.randint(0, classes, (rows,)), torch.rand(rows) > 0.5]

def get_init_inputs():
    return [classes]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pick.py"
    path.write_text(PICK, encoding="utf-8")
    return path


def pair(file: Path) -> tuple[torch.nn.Module, Any, tuple[Any, ...]]:
    """The reference, the tuned model with its weight, and inputs for both."""
    kernel = import_model(str(file)).kernel
    reference = kernel.reference()
    model = reference.make_model(1, torch.device("cpu"))
    tuned = reference.make_model(2, torch.device("cpu"), import_model(str(file)))
    tuned.load_state_dict(model.state_dict())
    return model, tuned, reference.make_inputs(3, torch.device("cpu"))


@pytest.mark.slow
def test_values_gradients_and_a_compiled_program(file: Path) -> None:
    model, tuned, inputs = pair(file)
    program = torch.compile(tuned, fullgraph=True, backend="aot_eager")
    for call in (tuned, program):
        found = call(*inputs)
        assert torch.equal(found, model(*inputs))
        tuned.zero_grad()
        found.sum().backward()
        (wanted,) = torch.autograd.grad(model(*inputs).sum(), model.weight)
        torch.testing.assert_close(tuned.weight.grad, wanted)
    assert ran_a_kernel(tuned), tuned.choices


def test_the_problem_and_its_least_work(file: Path) -> None:
    _, tuned, inputs = pair(file)
    problem = tuned.problem(*inputs)
    assert problem == Problem({"rows": 70, "classes": 9})
    assert tuned.kernel.work(problem).bytes == 4 * (70 * 9 + 9 + 70)


@pytest.mark.parametrize(
    ("place", "change", "reason"),
    [
        (0, torch.Tensor.long, "'scores' is torch.int64, and none of the kernel's `indices`"),
        (1, torch.Tensor.int, "'target' is torch.int32: the kernel's indices are torch.int64 or torch.bool"),
        (2, torch.Tensor.float, "'mask' is torch.float32: the kernel's indices are torch.int64 or torch.bool"),
        (1, lambda target: target.to("meta"), "'target' is torch.int64 on meta, not torch.float32 on cpu"),
        (1, lambda target: target.repeat(2)[::2], "'target' is not contiguous: its strides are (2,)"),
    ],
)
def test_what_is_the_references(file: Path, place: int, change: Any, reason: str) -> None:
    _, tuned, inputs = pair(file)
    changed = tuple(change(value) if number == place else value for number, value in enumerate(inputs))
    assert tuned.problem(*changed) is None
    assert tuned.reason == reason


def test_an_index_that_no_tensor_is(file: Path) -> None:
    file.write_text(PICK.replace('"mask")', '"masks")'), encoding="utf-8")
    with pytest.raises(
        KernelFolderError, match="indices: no 'masks' among the tensors of axes: scores, weight, target, mask"
    ):
        import_model(str(file))
