"""Each kernel inside the programs that PyTorch makes on a GPU: compiled, exported, recorded, on streams and threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from five_models import KERNELS, pair, ran_a_kernel, with_gradient
from torch import nn
from torch._dynamo.utils import counters

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.traced_call import operands
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device

pytestmark = pytest.mark.gpu
FUSED = {
    "gemm_scale_bn": {"batch_size": 128, "in_features": 256, "out_features": 256},
    "gemm_sigmoid_residual": {"batch_size": 128, "input_size": 256, "hidden_size": 256},
}
each_kernel = pytest.mark.parametrize("name", KERNELS)


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def on_device(name: str, *, training: bool = False) -> tuple[nn.Module, TunedModule, tuple[Any, ...]]:
    return pair(name, device="cuda", training=training)


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


def several(inputs: tuple[Any, ...], times: int) -> tuple[Any, ...]:
    return (torch.cat([inputs[0]] * times), *inputs[1:])


@each_kernel
def test_opcheck(name: str) -> None:
    _, tuned, inputs = on_device(name)
    torch.library.opcheck(
        tuned._operators.forward[False, True], operands(tuned, with_gradient(inputs)), rtol=2e-3, atol=2e-3
    )


@each_kernel
def test_compiled_at_one_shape_then_at_any(name: str) -> None:
    model, tuned, inputs = on_device(name)
    program = torch.compile(tuned, fullgraph=True)
    with torch.no_grad():
        for times in (1, 2, 3, 5):
            close(program(*several(inputs, times)), model(*several(inputs, times)))
    assert ran_a_kernel(tuned), tuned.choices
    assert counters["stats"]["unique_graphs"] == 2


@each_kernel
def test_gradients_of_a_compiled_model(name: str) -> None:
    model, tuned, inputs = on_device(name, training=True)
    program = torch.compile(tuned, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        mine, theirs = with_gradient(inputs), with_gradient(inputs)
        for result in (program(*mine), model(*theirs)):
            result.square().mean().backward()
        close(mine[0].grad, theirs[0].grad)
    close(tuned.state_dict(), model.state_dict())


@each_kernel
@pytest.mark.parametrize("frozen", [False, True])
def test_reduce_overhead_replays_the_kernel_on_what_the_parameters_are_now(name: str, frozen: bool) -> None:
    model, tuned, inputs = on_device(name)
    if frozen:
        tuned.freeze()
    program = torch.compile(tuned, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            for _ in range(3):
                torch.compiler.cudagraph_mark_step_begin()
                close(program(*inputs).clone(), model(*inputs))
            for one in (model, tuned):
                for parameter in one.parameters():
                    parameter.mul_(1.25)
    assert ran_a_kernel(tuned), tuned.choices
    if not frozen:
        assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.parametrize(("name", "sizes"), FUSED.items())
def test_reduce_overhead_with_memory_that_outlives_a_call(name: str, sizes: dict[str, int]) -> None:
    """The fused product keeps its guess of the weight's exponents, which must not lie in the pool of a recording."""
    device, cuda = find_device("cuda"), torch.device("cuda")
    factory = load_model(name)
    reference = factory.kernel.reference(sizes)
    model: Any = reference.make_model(3, cuda).eval()
    tuned: Any = reference.make_model(3, cuda, factory).eval()
    tuned.load_state_dict(model.state_dict())
    (x,) = reference.make_inputs(5, cuda)
    problem = tuned.problem(x)
    fused = [one for one in factory.kernel.space.enumerate(problem, device) if one.get("product") == "fused"]
    if not fused:
        pytest.skip("the fused product is Hopper's")
    tuned.pin(build_plan(factory.kernel, fused[0], problem, device, compiler_for(device)))
    program = torch.compile(tuned, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(2):
            for _ in range(4):
                torch.compiler.cudagraph_mark_step_begin()
                close(program(x).clone(), model(x))
            for one in (model, tuned):
                one.gemm.weight.mul_(3.0)
                one(x)  # an eager call between replays makes the guess anew
    assert counters["inductor"]["cudagraph_skips"] == 0


@each_kernel
def test_exported(name: str) -> None:
    model, tuned, inputs = on_device(name)
    shapes = ({0: torch.export.Dim("batch", min=2)}, *(None for _ in inputs[1:]))
    with torch.no_grad():
        program = torch.export.export(tuned, inputs, dynamic_shapes=shapes).module()
        assert "tunebench" in program.code
        close(program(*several(inputs, 3)), model(*several(inputs, 3)))


@each_kernel
def test_captured_from_a_compiled_program(name: str) -> None:
    model, tuned, inputs = on_device(name)
    program = torch.compile(tuned, fullgraph=True)
    fixed = (inputs[0].clone(), *inputs[1:])
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            program(*fixed)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            result = program(*fixed)
        fixed[0].mul_(2)
        graph.replay()
        close(result, model(*fixed))


@each_kernel
def test_streams_and_threads(name: str) -> None:
    model, tuned, inputs = on_device(name)
    program = torch.compile(tuned, fullgraph=True)
    with torch.no_grad():
        program(*inputs)
    torch.cuda.synchronize()

    def run(factor: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            given = (inputs[0] * factor, *inputs[1:])
            found = [program(*given) for _ in range(20)][-1]
            wanted = model(*given)
            torch.cuda.current_stream().synchronize()
            return found, wanted

    with ThreadPoolExecutor(4) as executor:
        for found, wanted in executor.map(run, range(1, 9)):
            close(found, wanted)
