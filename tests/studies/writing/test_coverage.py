"""The modules of real programs, and the count of what `tunebench new` turns into kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks.coverage import cases, main
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
PROBLEMS = {
    "level1/2_relu.py": "torch.relu(x) * 2",
    "level1/10_cumsum.py": "torch.relu(x * 2).cumsum(0)",
    "level2/1_two_results.py": "(x + 1, x * 2)",
    "level2/2_no_such_value.py": "y",
}


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


def test_problems_are_counted_by_what_becomes_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in PROBLEMS.items():
        (tmp_path / "KernelBench" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "KernelBench" / name).write_text(PROBLEM.format(value=value), encoding="utf-8")
    chosen = [(case.group, case.name) for case in cases(tmp_path)]
    assert chosen[-4:] == [
        ("level1", "2_relu"),
        ("level1", "10_cumsum"),
        ("level2", "1_two_results"),
        ("level2", "2_no_such_value"),
    ]
    assert len(chosen) == len(DTYPES) * len(MODULES) + 4
    main(tmp_path, only=["level"], file=tmp_path / "coverage.json")
    rows, are_all = read_rows(tmp_path / "coverage.json")
    assert are_all
    assert [(row["extent"], row["block"], row["left"]) for row in rows] == [
        ("entirely", "Pointwise", []),
        ("partly", "Pointwise", ["cumsum"]),
        ("by hand", "", []),
        ("by hand", "", []),
    ]
    assert [row["why"] for row in rows[:2]] == ["", ""]
    assert "does not return one tensor" in rows[2]["why"] and "'y' is not defined" in rows[3]["why"]
    assert str(tmp_path) not in json.dumps(rows)
    printed = capsys.readouterr().out
    assert "left to torch most often: cumsum 1" in printed
    assert printed.splitlines()[-2].split() == ["level1", "1", "1", "0"]
    assert printed.splitlines()[-1].split() == ["level2", "0", "0", "2"]
