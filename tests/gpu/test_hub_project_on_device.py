"""Projects of Hugging Face's kernel-builder on CUDA: built by nvcc and g++, loaded by their path."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from exported_files import exported_project
from hub_project import built, loaded
from processes import ended
from torch.utils.cpp_extension import CUDA_HOME

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(CUDA_HOME is None, reason="needs nvcc")]


@pytest.mark.parametrize("name", ["scalar_mul", "gemm_scale_bn"])
def test_a_project_runs_its_kernels(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the project is of a Hopper card")
    for path, text in exported_project(name).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    target = "arch=compute_90a,code=sm_90a"
    source = tmp_path / f"{name}_cuda" / f"{name}.cu"
    compiled = ended(
        *(f"{CUDA_HOME}/bin/nvcc", "-O3", "-std=c++17", f"-gencode={target}", "-Xcompiler", "-fPIC"),
        *("-c", source, "-o", tmp_path / "kernels.o"),
    )
    assert compiled.returncode == 0, compiled.stderr[-3000:]
    module = loaded(built(tmp_path, name, tmp_path / "kernels.o", "-lcudart"))
    launched, launch = [], module.tuned.Library.launch

    def noting(library: object, entry_point: str, *arguments: object, **named: object) -> None:
        launched.append(entry_point)
        launch(library, entry_point, *arguments, **named)

    monkeypatch.setattr(module.tuned.Library, "launch", noting)
    with torch.device("cuda"):
        arguments, inputs = module.reference.get_init_inputs(), module.reference.get_inputs()
        tuned, reference = module.ModelNew(*arguments), module.reference.Model(*arguments)
    reference.load_state_dict(tuned.state_dict())
    with torch.no_grad():
        found, wanted = tuned(*inputs).double(), reference(*inputs).double()
    assert launched and (found - wanted).norm() <= 1e-4 * wanted.norm()
