"""RMSNorm in CUDA C++: 60 configurations."""

import torch

from tunebench import Constraint, Kernel, Plan, SearchSpace, Tunable, TunedModule, constraints

from .reference import Model

TUNABLES = {"block_size": (64, 128, 256, 512, 1024), "vector_width": (1, 2, 4), "unrolled": (1, 2, 4, 8)}
SPACE = SearchSpace(
    tunables=tuple(Tunable(name, values) for name, values in TUNABLES.items()),
    constraints=(
        constraints.block_fits("block_size"),
        Constraint("vectors_divide_rows", lambda vector_width, problem: problem.axes["features"] % vector_width == 0),
    ),
)
AXES = {"x": ("rows", "features"), "weight": ("features",), "return": ("rows", "features")}


class ModelNew(TunedModule, Model):
    """`Model` of `reference.py`, a block for each row."""

    kernel = Kernel.declare(__file__, SPACE, axes=AXES)

    def tuned_forward(self, plan: Plan, x: torch.Tensor) -> torch.Tensor:
        """Run the kernel."""
        rows, features = x.shape
        y = torch.empty_like(x)
        plan.launch("row_norm", x, self.weight, y, self.eps, features, blocks=rows, threads=plan.integer("block_size"))
        return y
