"""A file that `tunebench compare` times, and models in it that only seem faster."""

FILE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))
        self.scale = scale

    def forward(self, x):
        for _ in range(60):
            x = x + 0.0
        return x * self.scale + self.weight.sum()

class ModelNew(Model):
    def forward(self, x):
        return x * self.scale + self.weight.sum()

def get_inputs():
    return [torch.rand(64, 1024)]

def get_init_inputs():
    return [3.0]
"""

NEW = FILE[FILE.index("class ModelNew") : FILE.index("def get_inputs")]
LAZY = """
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [Model.forward(*one.waiting) if isinstance(one, Lazy) else one for one in args]
        return func(*args, **(kwargs or {}))

class ModelNew(Model):
    def forward(self, x):
        y = torch.empty(0).as_subclass(Lazy)
        y.waiting = self, x
        return y
"""
BY_POINTER = """
class ModelNew(Model):
    seen = {}
    def forward(self, x):
        if x.data_ptr() not in self.seen:
            self.seen[x.data_ptr()] = super().forward(x)
        return self.seen[x.data_ptr()].clone()
"""
WHEN_NOT_TIMED = """
import sys
class ModelNew(Model):
    def forward(self, x):
        frame = sys._getframe()
        while frame := frame.f_back:
            if frame.f_code.co_filename.endswith("batched_calls.py"):
                return torch.empty_like(x)
        return super().forward(x)
"""
OTHER_CLOCK = """
import time, types
import tunebench.tuner.gate.boundary.batched_calls as calls
calls.time = types.SimpleNamespace(perf_counter=lambda: time.perf_counter() / 10)
ModelNew = type("ModelNew", (Model,), {})
"""
