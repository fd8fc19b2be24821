"""Move a kernel from `torch.utils.cpp_extension.load_inline` to tunebench.

Before, the source had a C++ wrapper, its numbers were fixed, and torch's headers took a minute to compile:

    module = load_inline(
        name="scale_add",
        cuda_sources=KERNEL + "torch::Tensor scale_add(...) { ... scale_add_kernel<<<blocks, 256>>>(...); ... }",
        cpp_sources="torch::Tensor scale_add(torch::Tensor x, torch::Tensor y, double a);",
        functions=["scale_add"],
    )

Now only the `__global__` function is left. The block size and the elements of a thread are constants under their own
names; the launch is Python. The same source is built by NVRTC for a GPU and by g++ for a CPU.
"""

import torch
from torch import nn

import tunebench
from tunebench import Kernel, Plan, SearchSpace, Tunable, TunedModule, ceil_div, constraints

SOURCE = """
extern "C" __global__ void __launch_bounds__(block_size)
    scale_add(const scalar_t* x, const scalar_t* y, scalar_t* out, accumulator_t a, long long n) {
    long long i = blockIdx.x * static_cast<long long>(block_size) * items + threadIdx.x;
#pragma unroll
    for (int item = 0; item < items; ++item, i += block_size) {
        if (i < n) {
            out[i] = a * x[i] + y[i];
        }
    }
}
"""


class Model(nn.Module):
    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = a

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.a * x + y


class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(
        __file__,
        SearchSpace(
            (Tunable("block_size", (64, 128, 256, 512), default=256), Tunable("items", (1, 2, 4, 8))),
            (constraints.block_fits("block_size"),),
        ),
        source=SOURCE,
        axes={"x": "n", "y": "n", "return": "n"},
    )

    def tuned_forward(self, plan: Plan, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out, threads = torch.empty_like(x), plan.integer("block_size")
        blocks = ceil_div(x.numel(), threads * plan.integer("items"))
        plan.launch("scale_add", x, y, out, self.a, x.numel(), blocks=blocks, threads=threads)
        return out


n = 10_000


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(n), torch.randn(n)]


def get_init_inputs() -> list[object]:
    return [1.5]


if __name__ == "__main__":
    (report,) = tunebench.tune(__file__, trials=3)
    assert report.outcome.best is not None
    print("the best:", report.outcome.best.configuration, f"{report.outcome.best.median_ms:.4f} ms")
    model = tunebench.load(__file__)(1.5)
    x, y = get_inputs()
    print(model(x, y).shape, [choice.reason for choice in model.choices.values()])
