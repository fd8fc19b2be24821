"""Models made from blocks, as files that a user would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Plan

CPU = find_device("cpu")

FILE = """
import torch
from torch import nn
from torch.nn import functional as F
from tunebench import blocks

class Model(nn.Module):
{model}

class ModelNew({base}, Model):
{block}

def get_inputs():
    return [torch.randn(6, 33)]

def get_init_inputs():
    return []
"""


def write(path: Path, base: str, model: str, block: str) -> Path:
    """A file with a model and a block; both are the bodies of classes."""

    def indented(text: str) -> str:
        return "\n".join(f"    {line}" for line in text.strip().splitlines())

    path.write_text(FILE.format(base=base, model=indented(model), block=indented(block)), encoding="utf-8")
    return path


def load(path: Path, base: str, model: str, block: str) -> type[TunedModule]:
    """The `ModelNew` of such a file."""
    return import_model(str(write(path, base, model, block)))


def pinned(model: TunedModule, configuration: Configuration, *inputs: Any) -> Plan:
    """The plan of one configuration, which has to serve the inputs; it is the model's from now on."""
    problem = model.problem(*inputs)
    assert problem is not None, model.reason
    plan = build_plan(model.kernel, configuration, problem, CPU, compiler_for(CPU))
    model.pin(plan)
    return plan


def run(model: TunedModule, configuration: Configuration, *inputs: Any) -> torch.Tensor:
    """The model under one configuration, which has to serve the inputs."""
    pinned(model, configuration, *inputs)
    with torch.no_grad():
        output: torch.Tensor = model(*inputs)
    return output
