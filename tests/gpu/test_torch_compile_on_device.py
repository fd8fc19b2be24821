"""max-autotune as a baseline: what it chooses from is built once, by Inductor's processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tunebench.tuner.timing.torch_compile import compile_reference, end_compilers

pytestmark = pytest.mark.gpu


def test_this_process_builds_no_product_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.async_compile import AsyncCompile
    from triton import knobs

    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    found: list[tuple[str, bool]] = []

    def listen(*, src: Any, cache_hit: bool, **_told: Any) -> None:
        found.append((src.name, cache_hit))

    monkeypatch.setattr(knobs.compilation, "listener", listen)
    AsyncCompile.wait_pool_ready()
    model = nn.Sequential(nn.Linear(512, 384, dtype=torch.float16), nn.ReLU()).cuda().eval()
    try:
        compile_reference(model, (torch.randn(256, 512, dtype=torch.float16, device="cuda"),))
    finally:
        end_compilers()
    # Pointwise kernels are tuned by building one after another here, whoever assembles them.
    products = [hit for name, hit in found if name == "triton_mm"]
    assert len(products) >= 3, found
    assert all(products), found
