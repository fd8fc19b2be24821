"""What a kernel's axes say of a call: its problem, and else why no kernel serves it."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_kernel import WriteKernel
from torch import nn
from torch.nn.utils.prune import random_unstructured

from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.problem import Problem, Work

SCALED = """
import torch
from torch import nn
from tunebench import Kernel, SearchSpace, Tunable, TunedModule

SOURCE = '''
extern "C" __global__ void scaled(const scalar_t* x, scalar_t* y, double s, long long n) {
    const long long i = blockIdx.x * 64LL + threadIdx.x;
    if (i < n) { y[i] = x[i] * s; }
}
'''

class Model(nn.Module):
    def __init__(self, features, bias=True):
        super().__init__()
        self.inner = nn.Linear(features, 3, bias=bias)
        self.eval()

    def forward(self, x, s=2.0):
        return x * s

class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(__file__, SearchSpace((Tunable("unused", (1, 2)),)), source=SOURCE, AXES)

    def tuned_forward(self, plan, x, s):
        y = torch.empty_like(x)
        plan.launch("scaled", x, y, s, x.numel(), blocks=-(-x.numel() // 64), threads=64)
        return y

n = 5

def get_inputs():
    return [torch.rand(n, 4), 3.0]

def get_init_inputs():
    return [4]
"""
NAMED = 'axes={"x": ("rows", "features"), "inner.weight": ("hidden", "features"), "return": ("rows", "features")}'

Write = Callable[[str], type[TunedModule]]


@pytest.fixture
def scaled(tmp_path: Path) -> Write:
    """A kernel in one file, with that in its declaration."""

    def write(declared: str) -> type[TunedModule]:
        file = tmp_path / "scaled.py"
        file.write_text(SCALED.replace("AXES", declared), encoding="utf-8")
        return import_model(str(file))

    return write


def test_dimensions_of_inputs_and_parameters_are_axes(scaled: Write) -> None:
    kernel = scaled(NAMED).kernel
    model: Any = scaled(NAMED)(4)
    problem = model.problem(torch.rand(5, 4), 2.0)
    assert problem == Problem({"rows": 5, "features": 4, "hidden": 3})
    assert kernel.work(problem) == Work(bytes=4 * (20 + 12 + 20), operations=20)
    assert torch.equal(model(torch.ones(5, 4)), torch.full((5, 4), 2.0))
    assert [choice.configuration for choice in model.choices.values()] == [Configuration({"unused": 1})]


def test_axes_that_are_not_named(scaled: Write) -> None:
    model: Any = scaled("")(4)
    problem = model.problem(torch.rand(5, 4, dtype=torch.float64), 2)
    assert problem is None and "a parameter or buffer is torch.float32" in model.reason
    problem = model.double().problem(torch.rand(5, 4, dtype=torch.float64), 2)
    assert problem == Problem({"x_0": 5, "x_1": 4}, "float64")
    assert model.kernel.work(problem) == Work(bytes=160, operations=1)


X = torch.rand(5, 4)
UNSERVED: dict[str, tuple[tuple[Any, ...], str]] = {
    "another rank": ((torch.rand(5, 4, 1), 2.0), "'x' has 3 dimensions, not 2 (rows, features)"),
    "other sizes": ((torch.rand(5, 6), 2.0), "'features' is 4 in 'inner.weight' and 6 before it"),
    "no tensor": ((7.0, 2.0), "'x' is a float, not a tensor"),
    "a tensor for a number": ((X, torch.tensor(2.0)), "'s' is a tensor, of which the kernel names no axes"),
    "text for a number": ((X, "2"), "'s' is a str, not a number"),
    "an empty tensor": ((torch.rand(0, 4), 2.0), "'x' is empty"),
    "holes": ((torch.rand(5, 8)[:, ::2], 2.0), "'x' is not contiguous: its strides are (8, 2)"),
    "whole numbers": ((X.long(), 2.0), "'x' is torch.int64, and none of the kernel's `indices`"),
    "another dtype": ((X.half(), 2.0), "'inner.weight' is torch.float32 on cpu, not torch.float16 on cpu"),
}


@pytest.mark.parametrize("case", UNSERVED)
def test_what_no_kernel_serves_and_why(scaled: Write, case: str) -> None:
    model: Any = scaled(NAMED)(4)
    inputs, reason = UNSERVED[case]
    assert model.problem(*inputs) is None
    assert model.reason == reason


def test_a_dtype_that_the_source_does_not_serve(scaled: Write) -> None:
    model: Any = scaled(NAMED)(4).half()
    assert model.problem(X.half(), 2.0) is None
    assert model.reason == "the kernel is for float32, float64, the inputs are float16"


def test_a_number_of_elements_takes_any_dense_layout(scaled: Write) -> None:
    model: Any = scaled('axes={"x": "n", "return": "n"}')(4)
    for dense in (X, X.t(), torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        assert model.problem(dense, 2.0) == Problem({"n": dense.numel()})
        assert torch.equal(model(dense, 3.0), dense * 3.0)
        assert model(dense, 3.0).stride() == dense.stride()
    assert model.problem(torch.rand(5, 8)[:, ::2], 2.0) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.inner.register_forward_hook(lambda *_: None),
        lambda model: setattr(model, "inner", nn.Bilinear(4, 4, 3)),
        lambda model: nn.utils.parametrizations.weight_norm(model.inner),
        lambda model: random_unstructured(model.inner, "weight", 1),
    ],
    ids=["a hook", "another module", "a parametrization", "pruning"],
)
def test_a_submodule_that_is_not_the_reference_s_own_is_not_passed_over(
    scaled: Write, change: Callable[[Any], object]
) -> None:
    model: Any = scaled(NAMED)(4)
    change(model)
    assert model.problem(X, 2.0) is None
    assert "a submodule or a parameter is another than the reference makes" in model.reason
    assert torch.equal(model(X), X * 2.0)
    assert "a submodule or a parameter is another" in model.choices[None, None].reason


def test_a_parameter_that_the_kernel_names_and_the_model_lacks(scaled: Write) -> None:
    model: Any = scaled('axes={"x": ("rows", "features"), "inner.bias": ("hidden",)}')(4, bias=False)
    assert model.problem(X, 2.0) is None and model.reason == "the model has no 'inner.bias'"


def test_a_model_of_one_file_is_copied_and_pickled(scaled: Write) -> None:
    model: Any = scaled(NAMED)(4).freeze()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(X), model(X)) and other.state_dict().keys() == model.state_dict().keys()
        assert other.is_frozen and not other.training


def test_a_helper_beside_the_model_is_imported_and_digested(write_kernel: WriteKernel) -> None:
    folder = write_kernel().kernel.folder
    (folder / "helper.py").write_text("WIDTH = 128\n", encoding="utf-8")
    model = folder / "model.py"
    text = model.read_text(encoding="utf-8").replace("(32, 64, 128, 256)", "(32, 64, WIDTH, 256)")
    model.write_text(f"from .helper import WIDTH\n{text}", encoding="utf-8")
    before = import_model(str(folder)).kernel
    (folder / "helper.py").write_text("WIDTH = 96\n", encoding="utf-8")
    after = import_model(str(folder)).kernel
    assert [kernel.space.tunable("block_size").values[2] for kernel in (before, after)] == [128, 96]
    assert before.digest != after.digest
