"""Models made from the linear block, on a GPU: every product with everything that can stand behind it."""

import random
from pathlib import Path

import pytest
import torch

from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.study.subject import Subject

pytestmark = pytest.mark.gpu

EXAMPLES = sorted((Path(__file__).parents[1] / "kernels" / "blocks" / "linear_examples").glob("*.py"), key=str)
SIZES = {"batch_size": 130, "in_features": 264, "out_features": 416}


def with_every_product(subject: Subject, device: Device) -> list[Configuration]:
    """Three configurations of each product that the space has."""
    space = subject.kernel.space.enumerate(subject.problem, device)
    by_product: dict[object, list[int]] = {}
    for number in range(len(space)):
        by_product.setdefault(space[number]["product"], []).append(number)
    chosen = random.Random(7)
    return [space[number] for numbers in by_product.values() for number in chosen.sample(numbers, 3)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_product_gives_the_references_values(cuda: Device, path: Path, dtype: str) -> None:
    factory = load_model(str(path))
    kernel = factory.kernel
    for mode in kernel.modes if "batch_norm" in path.stem else (Mode.EVAL,):
        subject = Subject.prepare(kernel, factory, kernel.reference(SIZES, dtype), mode, cuda)
        model, given = subject.model, subject.oracle.cases[0].inputs
        for configuration in with_every_product(subject, cuda):
            plan = build_plan(kernel, configuration, subject.problem, cuda, compiler_for(cuda))
            model.pin(plan)
            with torch.no_grad():
                found, wanted = model(*given), subject.reference(*given)
            coarse = dtype == "float16" or "bf16" in configuration.values() or "e4m3" in configuration.values()
            tolerance = 2e-2 if coarse else 3e-4
            size = float(wanted.abs().max())
            torch.testing.assert_close(found, wanted, rtol=0.0, atol=tolerance * size, msg=str(configuration))


@pytest.mark.parametrize("stem", ["logsumexp_mish", "group_norm_hardtanh", "residual_batch_norm", "swiglu"])
def test_a_captured_call_follows_its_inputs(cuda: Device, stem: str) -> None:
    path = next(path for path in EXAMPLES if path.stem == stem)
    factory = load_model(str(path))
    subject = Subject.prepare(factory.kernel, factory, factory.kernel.reference(SIZES), Mode.EVAL, cuda)
    model, given = subject.model, subject.oracle.cases[0].inputs
    for configuration in with_every_product(subject, cuda)[::3]:
        model.pin(build_plan(factory.kernel, configuration, subject.problem, cuda, compiler_for(cuda)))
        with torch.no_grad():
            model(*given)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = model(*given)
            for one in given:
                one.mul_(0.5)
            graph.replay()
            torch.testing.assert_close(captured, subject.reference(*given), rtol=1e-2, atol=1e-2)
