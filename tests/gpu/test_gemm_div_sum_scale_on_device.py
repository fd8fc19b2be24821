"""gemm_div_sum_scale on CUDA: every way to sum, repeats, and two streams at once. Skips without a GPU."""

import copy
import random

import pytest
import torch

from tunebench.kernels.gemm_div_sum_scale.model import SPACE, ModelNew
from tunebench.kernels.gemm_div_sum_scale.reference import Model
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device

pytestmark = pytest.mark.gpu


def pair(inputs: int, hidden: int) -> tuple[Model, ModelNew]:
    torch.manual_seed(3)
    reference, tuned = Model(inputs, hidden, 1.5).cuda(), ModelNew(inputs, hidden, 1.5).cuda()
    tuned.load_state_dict(reference.state_dict())
    return reference, tuned


def pin(model: ModelNew, device: Device, x: torch.Tensor, pick: int, **allowed: Value) -> None:
    problem = model.problem(x)
    assert problem is not None
    space = SPACE.fix(allowed).enumerate(problem, device)
    chosen = random.Random(pick).choice(space)
    model.pin(build_plan(model.kernel, chosen, problem, device, compiler_for(device)))


def error(output: torch.Tensor, reference: Model, x: torch.Tensor) -> float:
    wanted = copy.deepcopy(reference).double()(x.double())
    return float(torch.linalg.vector_norm(output.double() - wanted) / torch.linalg.vector_norm(wanted))


@pytest.mark.parametrize("join", SPACE.tunable("join").values)
@pytest.mark.parametrize("pick", range(5))
def test_every_way_and_size(cuda: Device, join: str, pick: int) -> None:
    for rows, inputs, hidden in ((1, 1, 1), (37, 1031, 257), (130, 4096, 3001), (1024, 2048, 8192)):
        reference, tuned = pair(inputs, hidden)
        x = torch.rand(rows, inputs, device="cuda")
        with torch.no_grad():
            pin(tuned, cuda, x, pick, algorithm="column_sums", join=join)
            output = tuned(x)
            assert error(output, reference, x) < 2e-6
            assert all(torch.equal(output, tuned(x)) for _ in range(20))


def test_the_product_first(cuda: Device) -> None:
    for pick in range(4):
        reference, tuned = pair(1028, 516)
        x = torch.rand(130, 1028, device="cuda")
        with torch.no_grad():
            pin(tuned, cuda, x, pick, algorithm="gemm")
            assert error(tuned(x), reference, x) < 5e-6


def test_kept_sums_follow_the_weight(cuda: Device) -> None:
    for pick in range(4):
        reference, tuned = pair(4096, 2048)
        tuned.freeze()
        x = torch.rand(1000, 4096, device="cuda")
        with torch.no_grad():
            pin(tuned, cuda, x, pick)
            assert error(tuned(x), reference, x) < 2e-6
            for model in (reference, tuned):
                model.weight.mul_(-2.0).add_(0.125)
            assert error(tuned(x), reference, x) < 2e-6


def test_one_launch_on_two_streams_at_once(cuda: Device) -> None:
    _, tuned = pair(8192, 4096)
    x = torch.rand(512, 8192, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(2)]
    with torch.no_grad():
        pin(tuned, cuda, x, 1, algorithm="column_sums", join="fused")
        wanted = tuned(x)
        torch.cuda.synchronize()
        outputs = []
        for _ in range(20):
            for stream in streams:
                with torch.cuda.stream(stream):
                    outputs.append(tuned(x))
        torch.cuda.synchronize()
    assert all(torch.equal(output, wanted) for output in outputs)
