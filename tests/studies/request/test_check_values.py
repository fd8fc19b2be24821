"""`tunebench check` on a file that returns a tree of values, draws random numbers and changes an input, as a whole."""

from pathlib import Path

import pytest

from tunebench.studies.checking.check import CheckRequest, check

FILE = """
import torch
from torch import nn
from torch.nn import functional

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.table = nn.Embedding(50, features)

    def forward(self, x, index, scale, seen):
        y = functional.dropout(self.linear(x) + self.table(index), 0.25, self.training) * scale
        seen.add_(1)
        return {"y": y, "best": y.max(1), "loss": (y**2).mean(), "spectrum": torch.fft.rfft(y), "rows": len(y)}

batch, features = 12, 10

def get_inputs():
    return [torch.rand(batch, features), torch.randint(50, (batch,)), 0.5, torch.zeros(3)]

def get_init_inputs():
    return [features]

class ModelNew(Model):
    def forward(self, x, index, scale, seen):
        y = torch.dropout(torch.addmm(self.linear.bias, x, self.linear.weight.T) + self.table.weight[index], 0.25, True)
        y = y * scale
        seen.copy_(seen + 1)
        return {"y": y, "best": torch.max(y, 1), "loss": (y * y).mean(), "spectrum": torch.fft.rfft(y), "rows": len(y)}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [("", "", ""), ("seen.copy_(seen + 1)", "pass", "input 4 does not hold what the reference leaves in it")],
)
def test_a_tree_of_values(tmp_path: Path, right: str, wrong: str, reason: str) -> None:
    path = tmp_path / "submission.py"
    path.write_text(FILE.replace(right, wrong) if right else FILE, encoding="utf-8")
    (report,) = check(CheckRequest(str(path), device="cpu"))
    assert report.passed is not bool(reason)
    assert reason in report.verdict.reason
