"""What only a GPU can show of `bench` and of derived tensors: TF32, torch.compile's graphs, streams and captures."""

import pytest
import torch

from tunebench.kernels.runtime.derived import DerivedTensors
from tunebench.studies.checking.bench import COMPILED_DEFAULT, TUNED, BenchCase, measure_case, measure_ceilings
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import Baseline

pytestmark = pytest.mark.gpu

SMALL = {"batch_size": 256, "in_features": 512, "out_features": 1024}


def test_ceilings_of_the_device_are_in_order() -> None:
    before = torch.get_float32_matmul_precision()
    found = measure_ceilings("cuda")
    assert list(found.gemm_tflops) == ["fp32", "TF32", "fp16"]
    assert found.gemm_tflops["fp32"] < found.gemm_tflops["TF32"] < found.gemm_tflops["fp16"]
    assert 0.5 < found.copy_gbs / found.read_gbs < 1.5
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.TRAIN])
def test_a_case_with_torch_compile(mode: Mode) -> None:
    result = measure_case(BenchCase("gemm_scale_bn", mode, SMALL, device="cuda", seconds=1.0), None)
    assert result.right and not result.notes
    assert set(result.timings) == {TUNED, COMPILED_DEFAULT, *Baseline}


def test_a_reference_in_tf32_is_right_where_it_serves_as_exactly_as_eager() -> None:
    small = {"batch_size": 4, "height": 20, "width": 20}
    result = measure_case(
        BenchCase("conv_min_add_mul", Mode.EVAL, small, device="cuda", seconds=0.5, accuracy=Accuracy.EAGER), None
    )
    assert (result.tier, result.right) == ("reference", True)


def test_a_graph_replays_the_form_of_its_capture_whatever_becomes_of_it() -> None:
    derived, weight = DerivedTensors(), torch.ones(1 << 20, device="cuda")

    def doubled() -> torch.Tensor:
        return derived.get("double", lambda: weight * 2, (weight,), ())

    doubled()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = doubled() + 1
    weight.mul_(3)
    assert bool((doubled() == 6).all())
    torch.full((1 << 22,), 77.0, device="cuda")  # would land in the old tensor's memory, were it free
    graph.replay()
    assert bool((output == 3).all())


def test_a_form_made_during_a_capture_is_the_graph_s_alone() -> None:
    derived, weight = DerivedTensors(), torch.ones(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = derived.get("double", lambda: weight * 2, (weight,), ()) + 1
    assert len(derived) == 0
    weight.mul_(3)
    graph.replay()
    assert bool((output == 7).all())


def test_a_form_made_on_one_stream_serves_another_at_once() -> None:
    derived, weight = DerivedTensors(), torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()

    def slowly() -> torch.Tensor:
        torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
        return weight * 2

    derived.get("double", slowly, (weight,), ())
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        assert bool((derived.get("double", slowly, (weight,), ()) == 2).all())
