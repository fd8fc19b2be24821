"""Random modules whose tuned forward is torch's operations in front of one kernel, as programs have them.

A module is a few steps (dropout, noise, moved buffers, normalisation, counters, scales), the kernel's product with a
weight, and one or two results. The tuned forward does the same steps by its own operations, as `before` of a kernel
that `tunebench new` writes does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from tunebench.kernels.runtime.policy import Policy

Step = tuple[str, str]
"""A line of `__init__`, and one of `forward`."""

STEPS: dict[str, Step] = {
    "dropout": ("self.drop{n} = nn.Dropout({p})", "x = self.drop{n}(x)"),
    "dropout in place": ("self.drop{n} = nn.Dropout({p}, inplace=True)", "x = self.drop{n}(x * 1.0)"),
    "functional dropout": ("self.p{n} = {p}", "x = torch.dropout(x, self.p{n}, self.training)"),
    "noise": ("self.sigma{n} = {p}", "x = x + torch.randn_like(x) * self.sigma{n}"),
    "noise in train mode": ("pass", "x = x + torch.rand_like(x) if self.training else x"),
    "noise of Python's": ("pass", "x = x * (1.0 + random.random())"),
    "noise of NumPy's": ("pass", "x = x + numpy.random.rand()"),
    "a moved average": (
        "self.register_buffer('mean{n}', torch.zeros(1))",
        "self.mean{n}.mul_(0.5).add_(x.detach().mean()); x = x - self.mean{n}",
    ),
    "a moved average that is read first": (
        "self.register_buffer('mean{n}', torch.ones(()))",
        "x = x * self.mean{n}.clone(); self.mean{n}.mul_(0.9)",
    ),
    "a replaced buffer": (
        "self.register_buffer('scale{n}', torch.ones(5))",
        "self.scale{n} = self.scale{n} * 1.5; x = x * self.scale{n}",
    ),
    "a buffer that nobody reads": ("self.register_buffer('calls{n}', torch.zeros(()))", "self.calls{n} += 1"),
    "a counter": ("self.count{n} = 1", "self.count{n} += 1; x = x * self.count{n}"),
    "a list": ("self.seen{n} = [1.0]", "self.seen{n}.append(0.5); x = x * len(self.seen{n})"),
    "batch normalisation": ("self.norm{n} = nn.BatchNorm1d(5)", "x = self.norm{n}(x)"),
    "normalisation by running statistics": (
        "self.norm{n} = nn.BatchNorm1d(5)",
        "y = self.norm{n}(x); x = y + x * self.norm{n}.running_var.clone()",
    ),
    "instance normalisation": (
        "self.norm{n} = nn.InstanceNorm1d(3, track_running_stats=True)",
        "x = self.norm{n}(x[None, :3].expand(2, 3, 5))[0].repeat(2, 1)",
    ),
    "layer normalisation": ("self.norm{n} = nn.LayerNorm(5)", "x = self.norm{n}(x)"),
    "a linear layer": ("self.layer{n} = nn.Linear(5, 5)", "x = self.layer{n}(x)"),
    "an activation": ("pass", "x = torch.tanh(x)"),
    "randomised slopes": ("self.slope{n} = nn.RReLU()", "x = self.slope{n}(x)"),
}

RESULTS = {
    "one": "{y}",
    "two": "({y}, x * 2.0)",
    "a detached one": "({y}, x.detach())",
    "an integer": "({y}, x.argmax(1))",
}

_REFERENCE = """
import random
import numpy
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1) + 0.5)
        {made}

    def steps(self, x):
        {steps}
        return x

    def forward(self, x):
        x = self.steps(x)
        return {result}

def get_inputs():
    return [torch.rand(6, 5)]

def get_init_inputs():
    return []
"""


def write_random_module(write_kernel: Callable[..., Any], seed: int) -> tuple[Any, str]:
    """Write the kernel's folder of a random module.

    Returns:
        The tuned model's class, and what the module is made of.
    """
    chosen = random.Random(seed)
    names = chosen.choices(list(STEPS), k=chosen.randint(1, 4))
    result = chosen.choice(list(RESULTS))
    filled = [
        [line.format(n=n, p=chosen.choice((0.0, 0.3, 0.7))) for line in STEPS[name]] for n, name in enumerate(names)
    ]
    made, steps = ("\n        ".join(lines) for lines in zip(*filled, strict=True))
    from sample_kernel import REFERENCE

    text = _REFERENCE.format(made=made, steps=steps, result=RESULTS[result].format(y="x * self.weight"))
    tuned = {
        "        self.calls += 1\n        y = torch": "        x = self.steps(x).contiguous()\n        y = torch",
        "        return y\n": f"        return {RESULTS[result].format(y='y')}\n",
    }
    return write_kernel(reference={REFERENCE: text}, model=tuned), f"{', '.join(names)}; results: {result}"


def state_of_all(device: torch.device) -> list[Any]:
    """The random states that a call may move."""
    import numpy

    return [
        random.getstate(),
        [str(one) for one in numpy.random.get_state()],
        torch.get_rng_state().tolist(),
        torch.cuda.get_rng_state(device).tolist() if device.type == "cuda" else None,
    ]


def seed_all(seed: int) -> None:
    """Begin all random states anew."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def steps_of(model: torch.nn.Module, device: torch.device, course: str) -> list[Any]:
    """What a model does in a course: all results, gradients, buffers and random states.

    Args:
        course: a letter for each thing that happens: `f` a forward that records gradients, `b` the backward of the
            oldest one that is left, `n` a forward without gradients, `e` and `t` eval and train mode.
    """
    seed_all(7)
    seen: list[Any] = []
    waiting: list[tuple[torch.Tensor, Any]] = []
    for letter in course:
        if letter in "et":
            model.train(letter == "t")
        elif letter == "b":
            x, results = waiting.pop(0)
            model.zero_grad()
            sum((one * (1.0 + n)).square().sum() for n, one in enumerate(results) if one.requires_grad).backward()
            seen += [x.grad, *(one.grad for one in model.parameters())]
        else:
            x = torch.linspace(-1.0, 1.0, 30, device=device).reshape(6, 5).requires_grad_(letter == "f")
            with torch.set_grad_enabled(letter == "f"):
                results = model(x)
            results = results if isinstance(results, tuple) else (results,)
            seen += [*(one.detach().clone() for one in results), *(one.requires_grad for one in results)]
            if letter == "f":
                waiting.append((x, results))
        seen += [*(one.clone() for one in model.buffers()), *state_of_all(device)]
    return seen


COURSES = ("fb", "ffbb", "fbfb", "nfb", "efbtfb", "tfbefbn")
POLICIES = (Policy.BEST, Policy.RECORDED, Policy.EXACT, Policy.REFERENCE)


def difference(found: list[Any], wanted: list[Any]) -> str:
    """Where two courses differ; empty where they do not."""
    if len(found) != len(wanted):
        return f"{len(found)} things were seen, {len(wanted)} by the reference"
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-5, atol=1e-6):
                return f"tensor {number}: {one} for {other}"
        elif one != other:
            return f"value {number}: {str(one)[:80]} for {str(other)[:80]}"
    return ""


def check_random_module(write_kernel: Callable[..., Any], seed: int, device: torch.device, *, wait: bool = True) -> str:
    """Compare a random module with its reference under every policy in two courses; empty where nothing differs.

    Which two it is goes round with the seed.

    Args:
        wait: whether calls wait for their kernel's build.
    """
    factory, made_of = write_random_module(write_kernel, seed)
    reference = factory.reference_class
    for number, policy in enumerate(POLICIES):
        for course in (COURSES[(seed + number) % len(COURSES)], COURSES[(seed + number + 3) % len(COURSES)]):
            torch.manual_seed(seed)
            original = reference().to(device)
            torch.manual_seed(seed)
            tuned = factory().to(device)
            tuned.policy, tuned.wait = policy, wait
            try:
                wanted = steps_of(original, device, course)
            except RuntimeError:
                continue  # a buffer that autograd had saved was written to: no program can do this
            if said := difference(steps_of(tuned, device, course), wanted):
                return f"seed {seed} ({made_of}), policy {policy}, course {course}: {said}"
    return ""
