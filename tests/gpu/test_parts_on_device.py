"""The product from half-precision parts on CUDA: what the CPU promises too, the library's own error, graphs."""

import pytest
import torch
from parts_contract import BF16, FP16, PRECISE, PartsContract, error, pin, product, product_model, run, scale_bn_pair

pytestmark = pytest.mark.gpu


class TestPartsOnDevice(PartsContract):
    device = "cuda"


@pytest.mark.parametrize(
    ("values", "pieces", "bound"),
    [(FP16, 1, 2e-5), (FP16, 4, 5e-6), (FP16, 8, 2.5e-6), (FP16, 16, 1.5e-6), (BF16, 1, 2e-5), (BF16, 16, 1e-5)],
    ids=str,
)
def test_the_error_of_a_long_product_falls_with_its_pieces(
    values: dict[str, str | int], pieces: int, bound: float
) -> None:
    """Relative norm error on the inputs of gemm_sigmoid_residual; strict fp32 is at some 1.6e-6."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.rand(1024, 8192, device="cuda", generator=generator)
    weight = (torch.rand(2048, 8192, device="cuda", generator=generator) * 2 - 1) / 8192**0.5
    wanted = x.double() @ weight.double().T
    found = product(x, weight, {**values, "pieces": pieces, "split_threads": 1024}).double()
    assert float((found - wanted).norm() / wanted.norm()) < bound


def test_more_rows_than_a_tile_and_a_depth_of_no_power_of_two() -> None:
    x, weight = torch.randn(1000, 4099, device="cuda"), torch.randn(1027, 4099, device="cuda")
    for values in (PRECISE, {**BF16, "pieces": 1}):
        assert error(product(x, weight, values), x, weight) < 3e-5


@pytest.mark.parametrize("frozen", [False, True], ids=["eval", "frozen"])
def test_a_captured_graph(*, frozen: bool) -> None:
    """Not frozen, its replays split the weight as it is then; frozen, they have the parts of the capture."""
    x, weight = torch.randn(64, 256, device="cuda"), torch.randn(128, 256, device="cuda")
    model = product_model(x, weight, PRECISE, frozen=frozen)
    run(model, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run(model, x)
    x.copy_(torch.randn_like(x))
    kept = weight.clone()
    model.gemm.weight.data.mul_(2.0**30)
    graph.replay()
    assert error(output, x, kept if frozen else model.gemm.weight.detach()) < 3e-6


def test_sums_in_half_precision_are_never_asked_for() -> None:
    x, weight = torch.rand(64, 512, device="cuda"), torch.rand(128, 512, device="cuda")
    before = torch.backends.cuda.matmul.allow_fp16_accumulation
    try:
        torch.backends.cuda.matmul.allow_fp16_accumulation = True
        assert error(product(x, weight, PRECISE), x, weight) < 3e-6
    finally:
        torch.backends.cuda.matmul.allow_fp16_accumulation = before


@pytest.mark.parametrize("normalisation", ["per_element", "folded", "weight"])
def test_a_frozen_normalising_model_in_a_graph(normalisation: str) -> None:
    reference, tuned = scale_bn_pair("cuda", 256, 128)
    tuned.freeze()
    x = torch.randn(64, 256, device="cuda")
    pin(tuned, x, {**PRECISE, "normalisation": normalisation})
    run(tuned, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run(tuned, x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(output, run(reference, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frozen", [False, True], ids=["eval", "frozen"])
def test_the_fused_product_in_either_mode(*, frozen: bool) -> None:
    reference, tuned = scale_bn_pair("cuda", 256, 128)
    if frozen:
        tuned.freeze()
    x = torch.randn(64, 256, device="cuda")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the fused product needs Hopper's warpgroup products")
    pin(tuned, x, {"product": "fused", "product_columns": 128, "product_stages": 3, "normalisation": "folded"})
    for _ in range(2):
        torch.testing.assert_close(run(tuned, x), run(reference, x), rtol=1e-4, atol=1e-4)
        for model in (reference, tuned):
            model.gemm.weight.data.mul_(2.0**7)
            model.bn.running_var.mul_(2.0)
