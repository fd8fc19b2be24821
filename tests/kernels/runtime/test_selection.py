"""What is known but cannot run here is passed over for the next best, with a warning, and the answer stays right."""

import pytest
import torch
from sample_kernel import WriteKernel

from tunebench.kernels.runtime.decision import forget_plans
from tunebench.kernels.runtime.selection import Tier, what_is_known
from tunebench.kernels.runtime.shipped import ShippedResult, write_file
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.device import find_device

CPU = find_device("cpu")
REFUSED_BY_COMPILER = {'extern "C"': 'static_assert(block_size != 32, "not here");\nextern "C"'}
REFUSED_BY_MACHINE = {
    "    def tuned_forward": """    @classmethod
    def make_ready(cls, plan):
        from tunebench.tuner.errors import LaunchError
        if plan.configuration["block_size"] in REFUSED:
            raise LaunchError("not here")

    def tuned_forward""",
    "import torch\n": "import torch\nREFUSED = (32,)\n",
}


def ship(model: type[TunedModule], block_size: int) -> None:
    shipped = ShippedResult(
        axes={"n": 15},
        dtype="float32",
        options={},
        configuration={"block_size": block_size, "blocks": 1, "variety": 0},
        speedups={},
        median_ms=0.5,
        error_multiple=None,
        conditions={},
    )
    write_file(model.kernel, CPU.name, CPU.architecture, [shipped])


def run(model: type[TunedModule]) -> Tier:
    """The tier that a call came from, whose answer was right."""
    tuned, x = model(), torch.rand(3, 5)
    with torch.no_grad():
        assert torch.equal(tuned(x), tuned.reference_forward(x))
    (choice,) = tuned.choices.values()
    return choice.tier


@pytest.mark.parametrize("by", ["compiler", "machine"])
def test_the_next_best_serves_where_the_best_cannot_run(write_kernel: WriteKernel, by: str) -> None:
    broken = {"source": REFUSED_BY_COMPILER} if by == "compiler" else {"model": REFUSED_BY_MACHINE}
    model = write_kernel(**broken)
    ship(model, 32)
    with pytest.warns(RuntimeWarning, match="passes over its shipped configuration"):
        assert run(model) is Tier.DEFAULT
    ship(model, 128)
    forget_plans()
    assert run(model) is Tier.SHIPPED


def test_the_reference_serves_where_nothing_can_run(write_kernel: WriteKernel) -> None:
    model = write_kernel(model=REFUSED_BY_MACHINE | {"import torch\n": "import torch\nREFUSED = (32, 64)\n"})
    with pytest.warns(RuntimeWarning) as warned:
        assert run(model) is Tier.REFERENCE
    assert [str(warning.message) for warning in warned] == [
        "weigh passes over its default configuration: not here",
        "weigh runs the reference's operations: not here",
    ]


def test_choices_come_best_first(write_kernel: WriteKernel) -> None:
    model = write_kernel()
    ship(model, 32)
    problem = model().problem(torch.rand(3, 5))
    assert problem is not None
    assert [choice.tier for choice in what_is_known(model.kernel, problem, CPU).choices()] == [
        Tier.SHIPPED,
        Tier.DEFAULT,
    ]
