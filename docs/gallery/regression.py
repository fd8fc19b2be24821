"""Fail a pull request that makes a kernel slower.

`tunebench regress BASE` times every kernel that differs between two git revisions, in the same rounds, and exits with
1 where the whole 99 % interval is slower than the threshold. [Across
commits](../regress.md#in-continuous-integration) has the workflow file. Here a repository gets a kernel, and then a
commit that makes it compute everything many times over.
"""

import os
import subprocess
import tempfile
from pathlib import Path

import tunebench

KERNEL = '''
import torch
from torch import nn

from tunebench import Kernel, Plan, SearchSpace, Tunable, TunedModule, ceil_div

SOURCE = """
extern "C" __global__ void __launch_bounds__(block_size) root(const scalar_t* x, scalar_t* y, long long n) {
    const long long i = blockIdx.x * static_cast<long long>(block_size) + threadIdx.x;
    if (i < n) {
        accumulator_t value = x[i];
        for (int turn = 0; turn < TURNS; ++turn) {
            value = sqrt(value);
        }
        y[i] = TURNS == 1 ? value : sqrt(accumulator_t(x[i])) + 0 * value;
    }
}
"""


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x)


class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(
        __file__, SearchSpace((Tunable("block_size", (64, 128)),)), source=SOURCE, axes={"x": "n", "return": "n"}
    )

    def tuned_forward(self, plan: Plan, x: torch.Tensor) -> torch.Tensor:
        y, threads = torch.empty_like(x), plan.integer("block_size")
        plan.launch("root", x, y, x.numel(), blocks=ceil_div(x.numel(), threads), threads=threads)
        return y


n = 100_000


def get_inputs():
    return [torch.rand(n)]


def get_init_inputs():
    return []
'''


def git(*arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=Me", "-c", "user.email=me@example.org", *arguments], check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        git("init", "--quiet")
        for turns, message in ((1, "A kernel"), (20, "It computes everything twenty times")):
            Path("root.py").write_text(KERNEL.replace("TURNS", str(turns)), encoding="utf-8")
            git("add", ".")
            git("commit", "--quiet", "-m", message)
        report = tunebench.regress("HEAD~1")
        for change in report.changes:
            print(change.kernel, change.mode, change.outcome, change.ratio)
        print("the pull request passes" if report.passed else "the pull request FAILS")
