"""Modules in plain PyTorch, each broken in one way, and the stage of the gate that must refuse it.

`broken_kernels.py` has those whose fault is in a kernel, and the table of both. These are about the code around one, so
that nothing has to be compiled for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fault_kinds import CALLERS, KEPT, LAYOUTS, MUTATED, NOT_FINITE, SIZES, STATE, UNWRITTEN, WRONG

_HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

"""

ROWS = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.slope = nn.LeakyReLU(0.1)

    def forward(self, x):
        return self.slope(self.norm(x))

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.slope = nn.LeakyReLU(0.1)

    def forward(self, x):
        y = self.norm(x)
        return self.slope(y)

def get_inputs():
    return [torch.rand(12, 18)]

def get_init_inputs():
    return [18]
"""
)
"""Without a named constant: its sizes are numbers in get_inputs and get_init_inputs."""

STATISTICS = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        return self.norm(x)

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        y = self.norm(x)
        return y

def get_inputs():
    return [torch.rand(12, 10)]

def get_init_inputs():
    return [10]
"""
)

PRODUCT = (
    _HEAD
    + """
class Model(nn.Module):
    def forward(self, a, b):
        return a @ b.T

class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b.T

rows, depth, columns = 20, 512, 24

def get_inputs():
    return [torch.rand(rows, depth), torch.rand(columns, depth)]

def get_init_inputs():
    return []
"""
)

ROOT = (
    _HEAD
    + """
class Model(nn.Module):
    def forward(self, x):
        return x / torch.sqrt(x.abs() + 1)

class ModelNew(nn.Module):
    def forward(self, x):
        root = torch.sqrt(x.abs() + 1)
        return x / root

rows = 20
columns = 24

def get_inputs():
    return [torch.rand(rows, columns)]

def get_init_inputs():
    return []
"""
)

ROUNDED = (
    _HEAD
    + """
class Model(nn.Module):
    def forward(self, x):
        return torch.round(4 * x) / 4

class ModelNew(nn.Module):
    def forward(self, x):
        return (4 * x).round() / 4

rows = 20

def get_inputs():
    return [torch.rand(rows, 24)]

def get_init_inputs():
    return []
"""
)

OPTIONAL = ROOT.replace("(self, x)", "(self, x, scale=None)").replace("abs() + 1", "abs() + (scale or 1)")
"""With an input that callers may leave out."""

WEIGHTED = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns))
        self.bias = nn.Parameter(torch.rand(columns))

    def forward(self, x):
        return F.relu(x) ** 2 * self.weight + self.bias

class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x.clamp_min(0) ** 2 * weight + bias

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        positive = x.clamp_min(0)
        return gradient * 2 * positive * weight, (gradient * positive**2).sum(0), gradient.sum(0)

class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns))
        self.bias = nn.Parameter(torch.rand(columns))

    def forward(self, x):
        return Weighted.apply(x, self.weight, self.bias)

rows = 20
columns = 24

def get_inputs():
    return [torch.rand(rows, columns)]

def get_init_inputs():
    return [columns]
"""
)

IMAGES = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3)

    def forward(self, x):
        return F.relu(self.conv(x))

class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3)

    def forward(self, x):
        return self.conv(x).relu()

batch = 3
channels = 4
width = 7

def get_inputs():
    return [torch.rand(batch, channels, width, width)]

def get_init_inputs():
    return [channels]
"""
)

DROPPED = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, residual):
        return self.drop(self.norm(x)) + residual

def drawn(like, share):
    return F.dropout(torch.ones_like(like), share)

class Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, share, kept):
        mask = drawn(x, share)
        ctx.save_for_backward(mask)
        ctx.share, ctx.kept = share, kept
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient * mask, None, None

class ModelNew(Model):
    def forward(self, x, residual):
        y = self.norm(x)
        return (Drop.apply(y, self.drop.p, self.__dict__) if self.training else y) + residual

def get_inputs():
    return [torch.rand(12, 18), torch.rand(12, 18)]

def get_init_inputs():
    return [18]
"""
)
"""Draws a mask in train mode, which its gradient has to have too."""

DROPPED_FIRST = (
    DROPPED.replace("self.drop(self.norm(x))", "self.norm(self.drop(x))")
    .replace("        y = self.norm(x)\n        return (Drop.apply(y,", "        return (self.norm(Drop.apply(x,")
    .replace("if self.training else y)", "if self.training else x))")
)

MOVED = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns))
        self.register_buffer("mean", torch.zeros(columns))

    def move(self, x):
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)

    def forward(self, x):
        self.move(x)
        return torch.tanh((x - self.mean) * self.weight)

class Centred(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, module):
        module.move(x)
        ctx.save_for_backward(x, weight)
        ctx.module, ctx.mean = module, module.mean.clone()
        return torch.tanh((x - module.mean) * weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        mean = ctx.mean
        inner = gradient * (1 - torch.tanh((x - mean) * weight) ** 2)
        return inner * weight, (inner * (x - mean)).sum(0), None

class ModelNew(Model):
    def forward(self, x):
        return Centred.apply(x, self.weight, self)

rows = 20
columns = 24

def get_inputs():
    return [torch.rand(rows, columns)]

def get_init_inputs():
    return [columns]
"""
)
"""Moves a buffer and reads it, as its gradient has to."""


@dataclass(frozen=True)
class BrokenModule:
    """One way of being wrong.

    Attributes:
        kind: the class of fault, as the gate's table names it.
        stage: of the gate that refuses it.
        reason: a pattern that the refusal's text has.
        sound: the file with the reference and its sound twin.
        changes: text replaced in it.
        gpu: shows on a CUDA device only.
    """

    kind: str
    stage: str
    reason: str
    sound: str
    changes: Mapping[str, str]
    gpu: bool = False


_PRODUCT = "        return a @ b.T\n\nrows"
_NORM = "        y = self.norm(x)\n"
_ROOT = "        return x / root\n"
_APPLY = "        return Weighted.apply(x, self.weight, self.bias)\n"
_OPTION = "    def forward(self, x, scale=None):\n        root"
_GRADIENTS = "        x, weight = ctx.saved_tensors\n"
_MASK = "        (mask,) = ctx.saved_tensors\n"
_ROUND = "((value.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)"


def norm(replaced: str) -> Mapping[str, str]:
    """Another way to the normalised rows."""
    return {_NORM: replaced}


def keeps(key: str) -> Mapping[str, str]:
    """An answer kept by this key."""
    return {
        _ROOT: f"        kept, key = self.__dict__.setdefault('kept', {{}}), {key}\n"
        "        if key not in kept:\n            kept[key] = x / root\n        return kept[key].clone()\n"
    }


def applied(condition: str) -> Mapping[str, str]:
    """Differentiable in this case only."""
    return {_APPLY: f"{_APPLY[:-1]} if {condition} else Weighted.apply(x, self.weight, self.bias).detach()\n"}


BROKEN_MODULES: Mapping[str, BrokenModule] = {
    # Sizes.
    "knows the numbers of its problem only": BrokenModule(
        SIZES, "sizes", "the number 1[28]", ROWS, norm("        y = self.norm(x.reshape(12, 18))\n")
    ),
    "serves a thousand columns": BrokenModule(
        SIZES,
        "batches",
        "inputs with 2\\d\\d\\d in place of",
        ROOT,
        {_ROOT: "        return F.pad((x / root)[..., :1024], (0, max(0, x.shape[-1] - 1024)))\n"},
    ),
    "keeps the number of rows of its first call": BrokenModule(
        SIZES,
        "batches",
        "in place of 12",
        ROWS,
        norm(
            "        rows = self.__dict__.setdefault('rows', x.shape[0])\n"
            "        y = torch.zeros_like(x)\n        y[:rows] = self.norm(x[:rows])\n"
        ),
    ),
    # Values.
    "takes the variance for a difference of squares": BrokenModule(
        WRONG,
        "distributions",
        "an offset of 1000",
        ROWS,
        norm(
            "        mean = x.mean(-1, keepdim=True)\n"
            "        variance = (x * x).mean(-1, keepdim=True) - mean * mean\n"
            "        y = (x - mean) * torch.rsqrt(variance.clamp_min(0) + self.norm.eps)\n"
            "        y = y * self.norm.weight + self.norm.bias\n"
        ),
    ),
    "takes tiny numbers for zero": BrokenModule(
        WRONG, "distributions", "tiny", ROWS, norm("        y = self.norm(torch.where(x.abs() < 1e-20, 0 * x, x))\n")
    ),
    "multiplies in TensorFloat-32": BrokenModule(
        WRONG,
        "values",
        "mixed signs",
        PRODUCT,
        {
            "    def forward(self, a, b):\n        return a @ b.T\n\nrows": "    def forward(self, a, b):\n"
            f"        a, b = ({_ROUND} if value.dtype == torch.float32 else value for value in (a, b))\n"
            "        return a @ b.T\n\nrows"
        },
    ),
    "takes small results for zero": BrokenModule(
        WRONG, "distributions", "small", ROOT, {_ROOT: "        return torch.where(x.abs() < 1e-10, 0 * x, x) / root\n"}
    ),
    "rounds half up": BrokenModule(
        WRONG,
        "distributions",
        "eighths",
        ROUNDED,
        {"        return (4 * x).round() / 4\n\nrows": "        return (4 * x + 0.5).floor() / 4\n\nrows"},
    ),
    "loses the sign of zero": BrokenModule(
        NOT_FINITE,
        "signed zeros",
        "-0.0",
        ROOT,
        {_ROOT: "        return torch.where(x < 0, -x.abs(), x.abs()) / root\n"},
    ),
    "never writes memory that an operator has allocated": BrokenModule(
        UNWRITTEN,
        "written",
        "20 of 480 elements were never written",
        ROOT,
        {
            _ROOT: "        y = torch.ops.aten.empty_like.default(x)\n"
            "        y[:, 1:] = (x / root)[:, 1:]\n        return y\n"
        },
    ),
    "never writes memory that was resized": BrokenModule(
        UNWRITTEN,
        "written",
        "20 of 480 elements were never written",
        ROOT,
        {
            _ROOT: "        y = x.new_zeros(0).resize_(x.shape)\n"
            "        y[:, 1:] = (x / root)[:, 1:]\n        return y\n"
        },
    ),
    # Results that are kept.
    "keeps results by some of the elements": BrokenModule(
        KEPT,
        "same memory",
        "one element changed",
        ROOT,
        keeps("(x.shape, float(x.flatten()[0]), float(x.flatten()[-1]))"),
    ),
    "keeps results by the sum": BrokenModule(
        KEPT,
        "same memory",
        "the same elements in another order",
        ROOT,
        keeps("(x.shape, round(float(x.double().sum()), 6))"),
    ),
    "keeps results by rounded numbers": BrokenModule(
        KEPT, "same memory", "all elements changed by", ROOT, keeps("str((8 * x).round().tolist())")
    ),
    "keeps results by numbers in bfloat16": BrokenModule(
        KEPT, "same memory", "all elements changed by a thousandth", ROOT, keeps("str(x.bfloat16().tolist())")
    ),
    "keeps results by every other element": BrokenModule(
        KEPT, "same memory", "element changed", ROOT, keeps("(x.shape, str(x.flatten()[::2].tolist()))")
    ),
    "keeps results by the second input": BrokenModule(
        KEPT,
        "same memory",
        "input 1 changed alone",
        PRODUCT,
        {
            _PRODUCT: "        kept, key = self.__dict__.setdefault('kept', {}), str(b.tolist())\n"
            "        if key not in kept or kept[key].shape[0] != a.shape[0]:\n            kept[key] = a @ b.T\n"
            "        return kept[key].clone()\n\nrows"
        },
    ),
    "skips every tenth call": BrokenModule(
        KEPT,
        "later calls",
        "one of 64 calls",
        ROOT,
        {
            _ROOT: "        self.calls = getattr(self, 'calls', 0) + 1\n"
            "        if self.calls % 10 or self.last.shape != x.shape or self.last.dtype != x.dtype:\n"
            "            self.last = x / root\n        return self.last.clone()\n"
        },
    ),
    "folds its weight when it is put into eval mode": BrokenModule(
        STATE,
        "mode",
        "weights that were edited in eval mode",
        ROWS,
        {
            "    def forward(self, x):\n" + _NORM: "    def train(self, mode=True):\n"
            "        self.kept = self.norm.weight.detach().clone()\n        return super().train(mode)\n\n"
            "    def forward(self, x):\n"
            "        weight = self.norm.weight if self.training else self.kept\n"
            "        y = F.layer_norm(x, x.shape[-1:], weight, self.norm.bias, self.norm.eps)\n"
        },
    ),
    "returns nothing when it is put into a mode": BrokenModule(
        STATE,
        "mode",
        "does not return the module",
        ROWS,
        {
            "    def forward(self, x):\n" + _NORM: "    def train(self, mode=True):\n        super().train(mode)\n\n"
            "    def forward(self, x):\n" + _NORM
        },
    ),
    "takes the model's mode for its part's": BrokenModule(
        STATE,
        "manners",
        "'norm' in (train|eval) mode",
        STATISTICS,
        {
            "        y = self.norm(x)\n        return y\n": "        norm, was = self.norm, self.norm.training\n"
            "        norm.train(self.training)\n        y = norm(x)\n        norm.train(was)\n        return y\n",
        },
    ),
    "keeps weights by their sum": BrokenModule(
        STATE,
        "weights",
        "weights in another order",
        ROWS,
        norm(
            "        weights = [self.norm.weight, self.norm.bias]\n"
            "        key = [round(float(w.double().sum()), 6) for w in weights]\n"
            "        if self.__dict__.get('key') != key:\n"
            "            self.__dict__.update(key=key, kept=[w.detach().clone() for w in weights])\n"
            "        y = F.layer_norm(x, x.shape[-1:], *self.kept, self.norm.eps)\n"
        ),
    ),
    "keeps weights for all models of its class": BrokenModule(
        STATE,
        "instances",
        "turn 1 of a model",
        ROWS,
        {
            "class ModelNew(nn.Module):\n": "KEPT = {}\n\nclass ModelNew(nn.Module):\n",
            _NORM: "        key = (x.shape[-1], self.norm.weight._version)\n"
            "        if key not in KEPT:\n"
            "            KEPT[key] = self.norm.weight.detach().clone(), self.norm.bias.detach().clone()\n"
            "        y = F.layer_norm(x, x.shape[-1:], *KEPT[key], self.norm.eps)\n",
        },
    ),
    "runs with its original's weights when it is copied": BrokenModule(
        STATE,
        "copies",
        "a deep copy that was edited",
        ROWS,
        {
            "        self.slope = nn.LeakyReLU(0.1)\n\n    def forward(self, x):\n        y": (
                "        self.slope = nn.LeakyReLU(0.1)\n        self.run = lambda x: self.norm(x)\n\n"
                "    def forward(self, x):\n        y"
            ),
            _NORM: "        y = self.run(x)\n",
        },
    ),
    "sixteen outputs that take turns": BrokenModule(
        MUTATED,
        "held results",
        "of 64 results",
        ROOT,
        {
            "class ModelNew(nn.Module):\n": "RINGS = {}\n\nclass ModelNew(nn.Module):\n",
            _ROOT: "        ring = RINGS.setdefault((x.shape, x.dtype), [])\n"
            "        if len(ring) < 16:\n            ring.insert(0, torch.empty_like(x))\n"
            "        ring.append(ring.pop(0))\n"
            "        return torch.div(x, root, out=ring[-1])\n",
        },
    ),
    "a thousand outputs that take turns": BrokenModule(
        MUTATED,
        "held results",
        "keeps for itself",
        ROOT,
        {
            "class ModelNew(nn.Module):\n": "RINGS = {}\n\nclass ModelNew(nn.Module):\n",
            _ROOT: "        if (x.shape, x.dtype) not in RINGS:\n"
            "            RINGS[x.shape, x.dtype] = [torch.empty_like(x) for _ in range(1000)]\n"
            "        ring = RINGS[x.shape, x.dtype]\n        ring.append(ring.pop(0))\n"
            "        return torch.div(x, root, out=ring[-1])\n",
        },
    ),
    "works in memory that all threads share": BrokenModule(
        KEPT,
        "threads",
        "two threads at once",
        ROOT,
        {
            _ROOT: "        self.root = root\n        time.sleep(1e-4)  # what a kernel takes\n"
            "        return x / self.root\n",
            "import torch\n": "import time\nimport torch\n",
        },
    ),
    "keeps every answer": BrokenModule(
        KEPT,
        "growth",
        "bytes of memory in use",
        ROOT,
        {_ROOT: "        self.__dict__.setdefault('kept', []).append(root)\n" + _ROOT},
    ),
    # Layouts.
    "takes channels-last weights for dense": BrokenModule(
        LAYOUTS,
        "layouts",
        "channels-last weights",
        IMAGES,
        {
            "        return self.conv(x).relu()\n": "        weight = self.conv.weight\n"
            "        dense = weight.as_strided(weight.shape, torch.empty(weight.shape, device='meta').stride())\n"
            "        return F.conv2d(x, dense, self.conv.bias).relu()\n"
        },
    ),
    # Modules.
    "knows one eps of a layer": BrokenModule(
        STATE,
        "settings",
        r"norm\.eps",
        ROWS,
        norm("        y = F.layer_norm(x, x.shape[-1:], self.norm.weight, self.norm.bias, 1e-5)\n"),
    ),
    "knows one slope": BrokenModule(
        STATE,
        "settings",
        r"slope\.negative_slope",
        ROWS,
        {"        return self.slope(y)\n": "        return F.leaky_relu(y, 0.1)\n"},
    ),
    "knows one stride": BrokenModule(
        STATE,
        "settings",
        r"conv\.stride",
        IMAGES,
        {
            "        return self.conv(x).relu()\n": "        conv = self.conv\n"
            "        return F.conv2d(x, conv.weight, conv.bias, 1, conv.padding, conv.dilation).relu()\n"
        },
    ),
    "passes over its hooks": BrokenModule(
        CALLERS,
        "hooks",
        "a forward pre-hook",
        ROOT,
        {
            "class ModelNew(nn.Module):\n": "class ModelNew(nn.Module):\n"
            "    def __call__(self, *inputs, **named):\n        return self.forward(*inputs, **named)\n\n"
        },
    ),
    "calls its input something else": BrokenModule(
        CALLERS,
        "keywords",
        "called with x by name",
        ROOT,
        {"    def forward(self, x):\n        root": "    def forward(self, value):\n        x = value\n        root"},
    ),
    "has no optional input": BrokenModule(
        CALLERS,
        "keywords",
        "with scale = 1",
        OPTIONAL,
        {_OPTION: _OPTION.replace(", scale=None):", "):\n        scale = None")},
    ),
    # Gradients.
    "moves its statistics where nothing is recorded only": BrokenModule(
        CALLERS,
        "gradients",
        "a call where gradients are recorded: buffer 'norm.running_mean' is off",
        STATISTICS,
        {
            "        return y\n": "        norm = self.norm\n"
            "        if torch.is_grad_enabled() and norm.training and norm.running_mean is not None:\n"
            "            return F.batch_norm(x, None, None, norm.weight, norm.bias, True)\n        return norm(x)\n",
            "        y = self.norm(x)\n": "",
        },
    ),
    "returns other values in inference mode": BrokenModule(
        CALLERS,
        "manners",
        "in (train|eval) mode, inference_mode",
        ROWS,
        norm("        y = self.norm(x) * (1.01 if torch.is_inference_mode_enabled() else 1.0)\n"),
    ),
    "returns other values where gradients are recorded": BrokenModule(
        CALLERS,
        "gradients",
        "a call where gradients are recorded",
        WEIGHTED,
        {
            "        return Weighted.apply(x, self.weight, self.bias)\n": "        recorded = torch.is_grad_enabled()\n"
            "        return Weighted.apply(x, self.weight, self.bias) + float(recorded)\n"
        },
    ),
    "draws anew in its backward": BrokenModule(
        CALLERS,
        "gradients",
        "of inputs and parameters: it draws other random numbers than the reference",
        DROPPED,
        {_MASK: "        mask = drawn(gradient, ctx.share)\n"},
    ),
    "drops other elements in its backward": BrokenModule(
        CALLERS,
        "gradients",
        "of inputs and parameters: the gradient of input 1 is off",
        DROPPED,
        {_MASK: f"{_MASK}        mask = mask.roll(1)\n"},
    ),
    "has a little of what it has dropped in its gradient": BrokenModule(
        CALLERS,
        "gradients",
        r"the gradient of input 1 is not zero in \d+ places that the forward has dropped",
        DROPPED_FIRST,
        {_MASK: f"{_MASK}        mask = mask + 1e-6\n"},
    ),
    "drops in every backward what it dropped in the first": BrokenModule(
        CALLERS,
        "gradients",
        "of two steps in a row: the gradient of .* of call 2 is off",
        DROPPED,
        {_MASK: f"{_MASK}        mask = ctx.kept.setdefault('mask', mask)\n"},
    ),
    "leaves the generator elsewhere": BrokenModule(
        CALLERS,
        "gradients",
        "of inputs and parameters: it draws other random numbers than the reference",
        DROPPED,
        {"        ctx.save_for_backward(mask)\n": "        ctx.save_for_backward(mask)\n        torch.rand(1)\n"},
    ),
    "drops by a generator of its own": BrokenModule(
        CALLERS,
        "values",
        "error",
        DROPPED,
        {
            "    return F.dropout(torch.ones_like(like), share)\n": "    own = torch.Generator().manual_seed(5)\n"
            "    return (torch.rand(like.shape, generator=own) >= share).to(like.dtype) / (1 - share)\n"
        },
    ),
    "moves its buffer again for its backward": BrokenModule(
        CALLERS,
        "gradients",
        "of inputs and parameters: the gradient of input 1 is off",
        MOVED,
        {"        mean = ctx.mean\n": "        mean = ctx.mean * 0.5 + x.mean(0) * 0.5\n"},
    ),
    "moves its buffer in its backward": BrokenModule(
        CALLERS,
        "gradients",
        "of inputs and parameters: afterwards: buffer 'mean' is off",
        MOVED,
        {"        mean = ctx.mean\n": "        mean = ctx.mean\n        ctx.module.move(x)\n"},
    ),
    "differentiates with its buffer as it is by then": BrokenModule(
        CALLERS,
        "training",
        "of two forwards before their backwards: the gradient of .* of call 1 is off",
        MOVED,
        {"module.mean.clone()": "module.mean"},
    ),
    "has the gradient of positive inputs": BrokenModule(
        CALLERS,
        "gradients",
        "input 1",
        WEIGHTED,
        {"        positive = x.clamp_min(0)\n": "        positive = x.abs()\n"},
    ),
    "takes the incoming gradient for dense": BrokenModule(
        CALLERS,
        "training",
        "for a strided gradient",
        WEIGHTED,
        {_GRADIENTS: f"{_GRADIENTS}        gradient = gradient.as_strided(x.shape, (x.shape[1], 1))\n"},
    ),
    "refuses an expanded gradient": BrokenModule(
        CALLERS,
        "training",
        "for an expanded gradient",
        WEIGHTED,
        {_GRADIENTS: f"{_GRADIENTS}        assert gradient.stride(-1)\n"},
    ),
    "needs every weight to be trained": BrokenModule(
        CALLERS,
        "training",
        "with some weights frozen",
        WEIGHTED,
        applied("all(p.requires_grad for p in self.parameters()) or not self.weight.requires_grad"),
    ),
    "needs a weight to be trained": BrokenModule(
        CALLERS, "training", "of inputs alone", WEIGHTED, applied("self.weight.requires_grad")
    ),
    "sets gradients that should add up": BrokenModule(
        CALLERS,
        "training",
        "of two backwards",
        WEIGHTED,
        {
            "ctx.save_for_backward(x, weight)": "ctx.save_for_backward(x, weight)\n        ctx.bias = bias",
            ", gradient.sum(0)\n": ", None\n",
            _GRADIENTS: f"{_GRADIENTS}        if ctx.needs_input_grad[2]:\n"
            "            ctx.bias.grad = gradient.sum(0)\n",
        },
    ),
    "cannot be derived twice": BrokenModule(
        CALLERS,
        "training",
        "of gradients",
        WEIGHTED,
        {
            "    @staticmethod\n    def backward": "    @staticmethod\n"
            "    @torch.autograd.function.once_differentiable\n    def backward"
        },
    ),
    "keeps a tensor of inference mode": BrokenModule(
        CALLERS,
        "training",
        "after a call in inference mode",
        WEIGHTED,
        {
            _APPLY: "        one = self.__dict__.setdefault('one', torch.ones((), dtype=x.dtype, device=x.device))\n"
            "        return Weighted.apply(x * one, self.weight, self.bias)\n"
        },
    ),
}
