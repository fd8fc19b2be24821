"""Exported files on CUDA: built by nvcc, run by their own launchers. Skips without a GPU, nvcc or ninja."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_files import exported, loaded
from torch import nn
from torch.utils.cpp_extension import CUDA_HOME, is_ninja_available

from tunebench.tuner.device import find_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(CUDA_HOME is None or not is_ninja_available(), reason="needs nvcc and ninja"),
]

SIZES: Mapping[str, Mapping[str, int | float]] = {
    "scalar_mul": {"M": 300, "N": 1001},
    "gemm_scale_bn": {"batch_size": 256, "in_features": 512, "out_features": 384},
    "conv_min_add_mul": {"batch_size": 4, "height": 34, "width": 34},
}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "scalar_mul": {"grid": "stride", "vector_width": 4},
    "gemm_scale_bn": {"product": "fused", "sum_stages": 16},
    "conv_min_add_mul": {"convolution": "implicit_gemm"},
}


class Launches:
    """A file's library, and the entry points that it was asked to launch."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.seen: list[str] = []

    def launch(self, entry_point: str, *arguments: Any, early: bool = False) -> None:
        self.seen.append(entry_point)
        self._library.launch(entry_point, *arguments, early=early)

    def resident_blocks(self, *arguments: Any) -> Any:
        return self._library.resident_blocks(*arguments)


@pytest.mark.parametrize("name", SIZES)
def test_a_file_runs_its_kernel_where_it_was_measured_and_the_reference_elsewhere(name: str, tmp_path: Path) -> None:
    device = find_device("cuda")
    if device.architecture != "sm_90" and name != "scalar_mul":
        pytest.skip("the products from halves need Hopper")
    options = {"precision": "tf32"} if name == "conv_min_add_mul" else {}
    text = exported(name, FORMS[name], device, options, SIZES[name])
    context, model, made, inputs = loaded(name, text, str(tmp_path), "cuda", SIZES[name])
    launches = context["LIBRARY"] = Launches(context["LIBRARY"])
    made.load_state_dict(model.state_dict())

    def agree(*arguments: Any) -> bool:
        """Whether a kernel served the call; the reference's answer in any case."""
        launches.seen.clear()
        wanted, found = model(*arguments), made(*arguments)
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-3)
        for one, other in zip(made.buffers(), model.buffers(), strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
        return bool(launches.seen)

    assert agree(*inputs)  # gradients enabled, train mode
    with torch.no_grad():
        assert agree(*inputs)
        assert not agree(inputs[0][:-1].contiguous(), *inputs[1:])
        assert not agree(inputs[0].transpose(-1, -2).contiguous().transpose(-1, -2), *inputs[1:])
        with torch.autocast("cuda"):
            made(*inputs)
        other = nn.Module.double(made)
        launches.seen.clear()
        other(*(value.double() if isinstance(value, torch.Tensor) else value for value in inputs))
        assert not launches.seen
        made.float()
    made.load_state_dict(model.state_dict())
    x = inputs[0].clone().requires_grad_()
    launches.seen.clear()
    (found,) = torch.autograd.grad(made(x, *inputs[1:]).sum(), x)
    (wanted,) = torch.autograd.grad(model(x, *inputs[1:]).sum(), x)
    assert launches.seen and torch.allclose(found, wanted, rtol=1e-3, atol=1e-4)
    launches.seen.clear()
    made(x, *inputs[1:])
    assert not launches.seen  # it is being trained


def test_a_cuda_graph_captures_a_file_s_kernels(tmp_path: Path) -> None:
    text = exported("scalar_mul", FORMS["scalar_mul"], find_device("cuda"), None, SIZES["scalar_mul"])
    _, model, made, (A, s) = loaded("scalar_mul", text, str(tmp_path), "cuda", SIZES["scalar_mul"])
    with torch.no_grad():
        made(A, s)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = made(A, s)
        A.fill_(2.0)
        graph.replay()
        assert torch.equal(output, model(A, s))
