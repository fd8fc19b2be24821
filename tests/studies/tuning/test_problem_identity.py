"""Two calls are one problem only if all that decides their work is the same: sizes drawn for every kernel there is."""

from __future__ import annotations

import pytest
import torch
from known_problems import known_problems
from sample_kernel import REFERENCE, WriteKernel

from tunebench.kernels.runtime.registry import import_model, kernel_names
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.for_problem import problem_of

# What the constructor is given and does, the forward, the inputs, and the sizes.
OWN = {
    "cross_entropy": (
        "",
        "x, labels: nn.functional.cross_entropy(x, labels)",
        "torch.rand(tokens, vocabulary), torch.arange(tokens) % vocabulary",
        {"tokens": 64, "vocabulary": 1000},
    ),
    "swiglu": (
        "hidden: self.gate, self.up, self.down = nn.Linear(33, hidden), nn.Linear(33, hidden), nn.Linear(hidden, 33)",
        "x: self.down(nn.functional.silu(self.gate(x)) * self.up(x))",
        "torch.rand(tokens, 33)",
        {"tokens": 256, "hidden": 64},
    ),
    "squeeze_excite": (
        "channels: self.fc = nn.Linear(channels, channels)",
        "x: torch.sigmoid(self.fc(x.mean((2, 3))))",
        "torch.rand(batch, channels, height, width)",
        {"batch": 4, "channels": 8, "height": 14, "width": 14},
    ),
    "pooled": (
        "window: self.pool = nn.MaxPool2d(2 * window + 1, 1, window)",
        "x: self.pool(x)",
        "torch.rand(2, 3, 64, 64)",
        {"window": 2},
    ),
    "dilated": (
        "apart: self.layer = nn.Conv2d(3, 3, 3, padding=apart, dilation=apart)",
        "x: self.layer(x)",
        "torch.rand(2, 3, 64, 64)",
        {"apart": 2},
    ),
    "iterated": (
        "steps: self.steps = steps",
        "x: [x := torch.sin(x) for _ in range(self.steps)][-1]",
        "torch.rand(64)",
        {"steps": 3},
    ),
    "along": ("axis: self.axis = -axis", "x: torch.softmax(x, self.axis)", "torch.rand(4, 4, 4, 4)", {"axis": 1}),
}
"""Modules with more to do than the sizes of a kernel's axes say, which are the same for all of their calls here."""


def _own(write_kernel: WriteKernel, name: str) -> type[TunedModule]:
    made, forward, inputs, sizes = OWN[name]
    given, _, body = made.partition(": ")
    taken, _, result = forward.partition(": ")
    constants = "\n".join(f"{key} = {value}" for key, value in sizes.items())
    text = f"""
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, {given}):
        super().__init__()
        {body}

    def forward(self, {taken}):
        return {result}

{constants}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return [{given}]
"""
    problem = {
        "def problem(self, x):\n": "def problem(self, *given):\n",
        "return super().problem(x) if x.is_contiguous() else self.unserved('x has holes')".replace("'", '"'): (
            'return Problem({"elements": 1})'
        ),
    }
    return write_kernel(reference={REFERENCE: text}, model=problem)


@pytest.mark.parametrize("name", kernel_names())
def test_unequal_calls_of_a_shipped_kernel_are_unequal_problems(name: str) -> None:
    """`test_exam.py` asks the same of the exam's kernels."""
    assert len(known_problems(import_model(name), seed=len(name))) > 3


@pytest.mark.parametrize("name", OWN)
def test_unequal_calls_are_unequal_problems_whatever_the_axes_say(write_kernel: WriteKernel, name: str) -> None:
    found = known_problems(_own(write_kernel, name), seed=0)
    assert len(found) > 2
    assert len({problem.named for problem in found.values()}) == 1


def test_a_problem_is_the_same_wherever_its_tensors_are(write_kernel: WriteKernel) -> None:
    """Results are recorded on a device, and looked for without memory where they are shipped and exported."""
    for name in OWN:
        factory = _own(write_kernel, name)
        reference, mode = factory.kernel.reference(), factory.kernel.modes[0]
        here = mode.put(reference.make_model(0, torch.device("cpu"), factory))
        assert isinstance(here, TunedModule)
        assert here.identify(*reference.make_inputs(0, torch.device("cpu"))) == problem_of(factory, reference, mode)
