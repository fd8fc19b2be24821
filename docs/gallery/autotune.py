"""Move a Triton kernel from `@triton.autotune` to tunebench.

Before, the choices were a list of configurations, timed on first use and never checked:

    @triton.autotune(
        configs=[triton.Config({"BLOCK": b}, num_warps=w) for b in (256, 512, 1024) for w in (2, 4, 8)],
        key=["n"],
    )
    @triton.jit
    def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr): ...

Now they are tunables. `num_warps` keeps its name, a `tl.constexpr` is the tunable of its name, and `key` is the
problem's axes. Every configuration is checked against the reference in float64, the winner is recorded, and the next
process does not search again. Without a GPU Triton's interpreter runs the kernel.
"""

import torch
import triton
import triton.language as tl
from torch import nn

import tunebench
from tunebench import Kernel, Plan, SearchSpace, Tunable, TunedModule, ceil_div


@triton.jit
def gelu_kernel(x, y, n: tl.int64, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32)
    tl.store(y + at, 0.5 * value * (1 + tl.erf(value * 0.7071067811865476)), mask=at < n)


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x)


class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(
        __file__,
        SearchSpace((Tunable("BLOCK", (256, 512, 1024)), Tunable("num_warps", (2, 4, 8), default=4))),
        axes={"x": "n", "return": "n"},
        dtypes=("float32",),
    )

    def tuned_forward(self, plan: Plan, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        plan.launch("gelu_kernel", x, y, x.numel(), blocks=ceil_div(x.numel(), plan.integer("BLOCK")))
        return y


n = 4096


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(n)]


def get_init_inputs() -> list[object]:
    return []


if __name__ == "__main__":
    (report,) = tunebench.tune(__file__, trials=2)
    assert report.outcome.best is not None
    print("the best:", report.outcome.best.configuration, f"{report.outcome.best.median_ms:.4f} ms")
