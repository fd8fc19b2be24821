"""The modules of real programs, and the count of what `tunebench new` turns into kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks.coverage import Case, Extent, cases, covered, main
from benchmarks.modules import DTYPES, MODULES
from benchmarks.rows import read_rows
from torch._subclasses.fake_tensor import FakeTensorMode

from tunebench.tuner.reference import load_reference

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return {value}


def get_inputs():
    return [torch.rand(4, 8)]


def get_init_inputs():
    return []
"""


def test_there_are_forty_modules_and_more() -> None:
    assert len(MODULES) >= 40
    assert len({module.title for module in MODULES.values()}) == len(MODULES)
    areas = ["transformers", "diffusion", "speech", "recommenders", "vision", "losses", "experts", "quantisation"]
    assert [*dict.fromkeys(module.area for module in MODULES.values())] == areas


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_runs_at_its_sizes_in_each_dtype(name: str, dtype: str) -> None:
    reference = load_reference(Path(f"{name}.py"), text=MODULES[name].file(dtype))
    with FakeTensorMode(), torch.no_grad():
        model = reference.model(*reference.get_init_inputs())
        inputs = reference.get_inputs()
        found = model(*inputs)
    floats = {str(one.dtype) for one in (*model.parameters(), *inputs) if one.is_floating_point()}
    assert floats <= {f"torch.{dtype}"}
    results = found if isinstance(found, tuple) else (found,)
    assert ("tuple" in MODULES[name].result) == isinstance(found, tuple)
    assert all(isinstance(one, torch.Tensor) for one in results)
    assert torch.get_default_dtype() is torch.float32


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of three problems that do not run."""
    for name, value in {"level1/10_b": "y", "level1/2_a": "z", "level2/1_c": "x.no_such_value"}.items():
        file = tmp_path / "KernelBench" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PROBLEM.format(value=value), encoding="utf-8")
    return tmp_path


def test_problems_come_by_number_behind_the_modules(checkout: Path) -> None:
    found = [(case.group, case.name) for case in cases(checkout)]
    assert found[-3:] == [("level1", "2_a"), ("level1", "10_b"), ("level2", "1_c")]
    assert len(found) == len(DTYPES) * len(MODULES) + 3


@pytest.mark.slow
def test_problems_are_counted_by_what_becomes_of_them(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(checkout, only=["level"], file=checkout / "coverage.json")
    rows, are_all = read_rows(checkout / "coverage.json")
    assert are_all and [row["extent"] for row in rows] == [Extent.NONE] * 3
    assert all(name in row["why"] for name, row in zip(("'z'", "'y'", "'no_such_value'"), rows, strict=True))
    assert str(checkout) not in json.dumps(rows)
    counts = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert counts == [["level1", "0", "2"], ["level2", "0", "1"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "extent", "block", "why"),
    [
        ("torch.relu(x) * 2", Extent.ALL, "Pointwise", ""),
        ("torch.linalg.svdvals(torch.relu(x) * 2)", Extent.NONE, "", "no loop nest has _linalg_svd"),
    ],
)
def test_what_has_no_kernel_is_told_with_its_reason(value: str, extent: Extent, block: str, why: str) -> None:
    row = covered(Case("level1", "1_a", PROBLEM.format(value=value)))
    assert (row["extent"], row["block"], row["why"]) == (extent, block, why)
