"""The text of a small kernel folder, as a user would write one."""

from collections.abc import Callable

from tunebench.kernels.runtime.tuned_module import TunedModule

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1) + 0.5)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x * self.weight

rows = 64
columns = 33

def get_inputs():
    return [torch.rand(rows, columns) + 0.1]

def get_init_inputs():
    return []
"""

SOURCE = """
extern "C" __global__ void __launch_bounds__(block_size)
    weigh(const scalar_t* x, const scalar_t* weight, scalar_t* y, long long n) {
    const long long step = static_cast<long long>(gridDim.x) * block_size;
    for (long long i = blockIdx.x * static_cast<long long>(block_size) + threadIdx.x; i < n; i += step) {
        y[i] = x[i] * weight[0];
    }
}
"""

MODEL = """
import torch
from tunebench import Constraint, Kernel, Problem, SearchSpace, Tunable, TunedModule, Work
from .reference import Model

SPACE = SearchSpace(
    tunables=(
        Tunable("block_size", (32, 64, 128, 256), default=64),
        Tunable("blocks", (1, 2, 4), default=2, host=True),
        Tunable("variety", (0, 1, 2)),
    ),
    constraints=(Constraint("few_threads", lambda block_size, blocks: block_size * blocks <= 512),),
)

def work(problem):
    return Work(8 * problem.axes["n"], problem.axes["n"])

class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(__file__, SPACE, axes={"x": "n"}, work=work)

    def problem(self, x):
        return super().problem(x) if x.is_contiguous() else self.unserved("x has holes")

    def tuned_forward(self, plan, x):
        self.calls += 1
        y = torch.empty_like(x)
        block_size = plan.integer("block_size")
        blocks = plan.integer("blocks")
        plan.launch("weigh", x, self.weight, y, x.numel(), blocks=blocks, threads=block_size)
        return y
"""

WriteKernel = Callable[..., type[TunedModule]]
"""Writes the folder and loads its model; `source`, `model` and `reference` replace text in those files."""

SLOW_REFERENCE = {
    "import torch\n": "import time\nimport torch\n",
    "        self.calls += 1\n": "        self.calls += 1\n        time.sleep(0.005)\n",
}
"""Changes of the reference with which any configuration is certainly faster, however busy the machine is. Final rounds
are conclusive unless two copies of the default differ, which they may on a busy machine."""
