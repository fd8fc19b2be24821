"""Check a KernelBench submission: is it right, and if not, where?

A submission is a file with `Model`, `ModelNew`, `get_inputs` and `get_init_inputs`. This one is a softmax that
forgets to subtract the maximum. KernelBench draws inputs between 0 and 1, where nobody notices. The gate draws
others.
"""

import tempfile
from pathlib import Path

import tunebench

SUBMISSION = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


class ModelNew(nn.Module):
    def forward(self, x):
        powers = torch.exp(x)
        return powers / powers.sum(1, keepdim=True)


def get_inputs():
    return [torch.rand(16, 100)]


def get_init_inputs():
    return []
"""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "submission.py"
        file.write_text(SUBMISSION, encoding="utf-8")
        (report,) = tunebench.check(file)
        print(report)
        assert not report.passed
        for refusal in report.refusals:
            print("refused at", refusal.detail)
        file.write_text(SUBMISSION.replace("torch.exp(x)", "torch.exp(x - x.amax(1, keepdim=True))"), encoding="utf-8")
        (report,) = tunebench.check(file)
        assert report.passed
        print("with the maximum subtracted it is right for the problem")
