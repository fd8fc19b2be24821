"""Small modules of forms that real programs have, as problems in KernelBench's form.

Whole modules at real sizes stand in `tests/benchmarks/modules.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass

_HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn
"""


@dataclass(frozen=True)
class RealModule:
    """One module.

    Attributes:
        text: the definition of `Model` and whatever it needs.
        inputs: what `get_inputs` returns, as Python.
        arguments: of `Model`.
        block: the block that its kernel is to be; empty where there is none for it.
        reason: why there is no kernel; a part of it.
    """

    text: str
    inputs: str
    arguments: str = "[]"
    block: str = ""
    reason: str = ""

    @property
    def file(self) -> str:
        """The text of the file."""
        inputs = f"def get_inputs():\n    return [{self.inputs}]\n"
        arguments = f"def get_init_inputs():\n    return {self.arguments}\n"
        return f"{_HEAD}\n\n{self.text.strip()}\n\n\n{inputs}\n\n{arguments}"


MODULES = {
    "RMSNorm in float32 of bfloat16": RealModule(
        """
class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(hidden_size) + 0.5)
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)
""",
        "torch.randn(2, 8, 64, dtype=torch.bfloat16)",
        "[64]",
        block="Passes",
    ),
    "SwiGLU": RealModule(
        """
class Model(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.w1 = nn.Linear(d, h, bias=False)
        self.w3 = nn.Linear(d, h, bias=False)
        self.w2 = nn.Linear(h, d, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))
""",
        "torch.randn(16, 32)",
        "[32, 64]",
        block="Linear and passes",
    ),
    "softmax in float32": RealModule(
        """
class Model(nn.Module):
    def forward(self, scores, bias):
        return F.softmax(scores * 0.125 + bias, dim=-1, dtype=torch.float32).to(scores.dtype)
""",
        "torch.randn(8, 64, dtype=torch.bfloat16), torch.randn(64, dtype=torch.bfloat16)",
        block="Rows",
    ),
    "functional dropout": RealModule(
        """
class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        return self.norm(x + F.dropout(torch.tanh(x), p=0.3, training=self.training))
""",
        "torch.randn(8, 32)",
        "[32]",
        block="Passes",
    ),
    "grouped Conv1d": RealModule(
        """
class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv1d(c, c, 3, padding=1, groups=c)

    def forward(self, x):
        return F.gelu(self.conv(x))
""",
        "torch.randn(2, 8, 32)",
        "[8]",
        block="Conv",
    ),
    "grouped Conv1d, gated": RealModule(
        """
class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1d = nn.Conv1d(c, c, 4, groups=c, padding=3)

    def forward(self, x):
        x = self.conv1d(x)[..., : x.shape[-1]]
        return F.silu(x) * torch.sigmoid(x * 2)
""",
        "torch.randn(2, 8, 32)",
        "[8]",
        block="Conv and passes",
    ),
    "in place on an argument": RealModule(
        """
class Model(nn.Module):
    def forward(self, x, y):
        x += y
        return torch.relu(x) * 2
""",
        "torch.randn(8, 32), torch.randn(8, 32)",
        reason="iadd, which changes 'x' in place",
    ),
    "in place by a positional argument": RealModule(
        "class Model(nn.Module):\n    def forward(self, x):\n        return F.relu(x, True) * 2 + 1\n",
        "torch.randn(8, 32)",
        reason="relu, which changes 'x' in place",
    ),
    "in place on values of its own": RealModule(
        """
class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.conv(x)
        out += x
        out = self.relu(out)
        out *= 0.5
        return out
""",
        "torch.randn(2, 8, 8, 8)",
        "[8]",
        block="Conv and passes",
    ),
    "parts of a Sequential": RealModule(
        """
class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.block = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d))

    def forward(self, x):
        return self.block(x)
""",
        "torch.randn(8, 32)",
        "[32]",
        block="Linear and passes",
    ),
    "parts of lists and dictionaries": RealModule(
        """
class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norms = nn.ModuleDict({"pre-norm": nn.BatchNorm1d(d), "last": nn.BatchNorm1d(d)})
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(d)), nn.Parameter(torch.rand(d))])

    def forward(self, x):
        x = self.norms["last"](torch.relu(self.norms["pre-norm"](x)))
        return torch.tanh(x * self.scales[0] + self.scales[1])
""",
        "torch.randn(8, 32)",
        "[32]",
        block="Passes",
    ),
    "a layer called layer": RealModule(
        """
class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layer = nn.Linear(d, d)

    def forward(self, x):
        return torch.tanh(F.relu(self.layer(x)) + 1)
""",
        "torch.randn(8, 32)",
        "[32]",
        block="Passes",
    ),
    "groups and finish of its own": RealModule(
        """
class Model(nn.Module):
    def __init__(self, d, groups):
        super().__init__()
        self.groups = groups
        self.norm = nn.LayerNorm(d)

    def finish(self, x):
        return torch.relu(x) / self.groups

    def forward(self, x):
        return self.finish(self.norm(x))
""",
        "torch.randn(8, 32)",
        "[32, 4]",
        block="Passes",
    ),
    "names of variables": RealModule(
        """
class Model(nn.Module):
    def forward(self, value, plan, before):
        return torch.cumsum(torch.tanh(value.flip(0) * 2) + value, 0) + plan * before
""",
        "torch.randn(8, 32), torch.randn(8, 32), torch.randn(8, 32)",
        reason="no loop nest has the argument 'plan'",
    ),
    "several results": RealModule(
        "class Model(nn.Module):\n    def forward(self, x):\n        return torch.relu(x) + 1, x * 2\n",
        "torch.randn(8, 32)",
        block="Passes",
    ),
    "another computation in train mode": RealModule(
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + torch.randn_like(x) if self.training else torch.relu(x) * 2 + 1
""",
        "torch.randn(8, 32)",
        block="Passes",
    ),
    "a counter": RealModule(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, x):
        self.calls += 1
        return torch.relu(x - self.mean) * 2
""",
        "torch.randn(8, 32)",
        reason="forward changes its attribute 'calls'",
    ),
    "a moved average": RealModule(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return torch.relu(x - self.mean) * 2
""",
        "torch.randn(8, 32)",
        block="Passes",
    ),
    "layer scale and stochastic depth": RealModule(
        """
class Model(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.gamma = nn.Parameter(1e-2 * torch.ones(d))
        self.drop_prob = p

    def forward(self, x, residual):
        x = x * self.gamma
        if self.drop_prob > 0.0 and self.training:
            keep = 1 - self.drop_prob
            mask = x.new_empty((x.shape[0], 1, 1)).bernoulli_(keep)
            x = x * mask / keep
        return residual + x
""",
        "torch.randn(2, 8, 32), torch.randn(2, 8, 32)",
        "[32, 0.1]",
        block="Passes",
    ),
    "a product with alpha": RealModule(
        """
class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(torch.rsub(x, y, alpha=0.5)) + torch.sub(x, y, alpha=2)
""",
        "torch.randn(8, 32), torch.randn(8, 32)",
        block="Pointwise",
    ),
}
