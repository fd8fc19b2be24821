"""KernelBench level 2, problem 95: a linear layer, a learnt term, Swish, tanh, GELU, hard tanh."""

import torch
from torch import nn

from tunebench import blocks


class Model(nn.Module):
    """hardtanh(gelu(tanh(swish(linear(x) + add_value))))."""

    def __init__(self, in_features: int, out_features: int, add_value_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.add_value = nn.Parameter(torch.randn(add_value_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.matmul(x) + self.add_value
        return nn.functional.hardtanh(nn.functional.gelu(torch.tanh(torch.sigmoid(total) * total)))


class ModelNew(blocks.Linear, Model):
    layer = "matmul"
    function = "clamp(gelu(tanh(swish(value + add_value))), -1, 1)"
    per_feature = ("add_value",)


batch_size = 1024
in_features = 8192
out_features = 8192
add_value_shape = (out_features,)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features)]


def get_init_inputs() -> list[object]:
    return [in_features, out_features, add_value_shape]
