"""Problems in KernelBench's form, written from their operations and sizes; and a sample for each block."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Number = int | float | str
"""A constant of a reference; a text is an expression of others."""

_TEXT = '''{imports}
from torch import nn


class Model(nn.Module):
    """{title}."""

    def __init__({parameters}) -> None:
        super().__init__()
{attributes}

    def forward(self, {arguments}) -> torch.Tensor:
{forward}


{constants}


def get_inputs() -> list[torch.Tensor]:
    return [{inputs}]


def get_init_inputs() -> list[object]:
    return [{passed}]
'''


@dataclass(frozen=True)
class ProblemText:
    """The computation of a reference and its inputs, as text.

    Attributes:
        title: the operations in words.
        x: sizes of the input, by the names of constants.
        numbers: the other constants.
        layers: attributes of the model, a line each; those that `forward` reads and this has not are constants.
        defaults: parameters of the model beside constants, with their defaults.
        forward: lines of Python, of which the last is the value.
        arguments: of `forward`; tensors, where a type does not say otherwise.
        inputs: what `get_inputs` returns; of no text one tensor of uniform numbers.
    """

    title: str
    x: Mapping[str, int]
    forward: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    layers: str = ""
    defaults: Mapping[str, int | float] = field(default_factory=dict)
    arguments: str = "x"
    inputs: str = ""

    @property
    def constants(self) -> dict[str, Number]:
        """All of the reference's constants, those of the input first."""
        return {**self.x, **self.numbers}

    @property
    def reference(self) -> str:
        """The text of the reference."""
        layers = [line.split(" = ", 1) for line in self.layers.splitlines()]
        known = {name for name, _ in layers}
        own = [name for name in dict.fromkeys(re.findall(r"self\.(\w+)", self.forward)) if name not in known]
        attributes = [*layers, *([name, name] for name in own)]
        read = set(re.findall(r"\w+", " ".join(value for _, value in attributes)))
        passed = [name for name in self.constants if name in read]
        taken = [f"{name}: {_type(self.constants[name])}" for name in passed]
        taken += [f"{name}: {_type(value)} = {value}" for name, value in self.defaults.items()]
        *statements, value = self.forward.splitlines()
        return _TEXT.format(
            imports="import math\n\nimport torch" if "math." in self.forward else "import torch",
            title=self.title,
            parameters=", ".join(["self", *taken]),
            attributes="\n".join(f"        self.{name} = {value}" for name, value in attributes),
            arguments=", ".join(one if ":" in one else f"{one}: torch.Tensor" for one in self.arguments.split(", ")),
            forward="\n".join(f"        {line}" for line in (*statements, f"return {value}")),
            constants="\n".join(f"{name} = {value}" for name, value in self.constants.items()),
            inputs=self.inputs or f"torch.rand({', '.join(self.x)})",
            passed=", ".join(passed),
        )


def _type(value: Number) -> str:
    return "tuple[int, ...]" if isinstance(value, str) else type(value).__name__


SAMPLES = {
    "pointwise": ProblemText(
        title="x · sigmoid(x), times a number: write your own operations here",
        x={"rows": 512, "columns": 1024},
        numbers={"scale": 1.5},
        forward="x * torch.sigmoid(x) * self.scale",
    ),
    "rows": ProblemText(
        title="RMSNorm over the last dimension: write your own operations here",
        x={"rows": 512, "features": 1024},
        numbers={"eps": 1e-5},
        layers="weight = nn.Parameter(torch.rand(features) + 0.5)",
        forward="x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight",
    ),
    "linear": ProblemText(
        title="A linear layer with SiLU and a factor behind it: write your own operations here",
        x={"batch_size": 128, "in_features": 512},
        numbers={"out_features": 256, "scale": 1.5},
        layers="linear = nn.Linear(in_features, out_features)",
        forward="nn.functional.silu(self.linear(x)) * self.scale",
    ),
    "conv": ProblemText(
        title="A convolution with ReLU and a bias per channel behind it: write your own operations here",
        x={"batch_size": 16, "in_channels": 8, "height": 32, "width": 32},
        numbers={"out_channels": 16, "kernel_size": 3},
        layers="conv = nn.Conv2d(in_channels, out_channels, kernel_size)\n"
        "bias = nn.Parameter(torch.randn(out_channels, 1, 1))",
        forward="torch.relu(self.conv(x)) + self.bias",
    ),
    "attention": ProblemText(
        title="Attention of as many queries as keys: write your own sizes here",
        x={"batch_size": 4, "heads": 8, "length": 512, "size": 64},
        forward="nn.functional.scaled_dot_product_attention(q, k, v)",
        arguments="q, k, v",
        inputs=", ".join(["torch.randn(batch_size, heads, length, size)"] * 3),
    ),
}
"""By the block that fits, where nobody has a problem of their own yet."""
