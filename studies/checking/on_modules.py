"""The gate on two modules of this process, whose code the caller vouches for."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tunebench.tuner.gate.model as tested
from tunebench.studies.checking.report import CheckReport, Subject
from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.checking.telling import Teller, exemptions_of
from tunebench.tuner.device import device_of
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.examine import examine, reference_runs
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.refusal import Claim, Refusal
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog
from tunebench.tuner.kernel import Mode, prepare_model
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.reference import Reference, require_dtype
from tunebench.tuner.settings import settings_here, under

Model = nn.Module | Callable[..., Any]
"""A class of modules, a module, or a function of tensors."""

Inputs = Sequence[Any] | Callable[[], Sequence[Any]]
"""One call's inputs, or what draws them with torch's generators."""


def check_modules(
    candidate: Model, reference: Model, inputs: Inputs, init_inputs: Sequence[Any], request: CheckRequest
) -> list[CheckReport]:
    """The verdict in each mode; see `tunebench.check`.

    Args:
        request: its target is the candidate's name; of files and kernels nothing in it counts.

    Raises:
        UserError: the reference does not run.
    """
    device = torch.device(request.device) if request.device else _device_of(reference, inputs)
    original = _Given(
        Path("reference"),
        "",
        _maker(reference),
        _drawer(inputs),
        lambda: init_inputs,
        {},
        dtype=require_dtype(request.dtype),
    )
    modes = [Mode(mode) for mode in request.modes or ()] or [_mode_of(reference)]
    request = replace(request, require=request.require or Claim.PROBLEM).seeded()
    # The gate seeds the caller's generators.
    drawing = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with under(request.settings or {}, device.type), drawing:
        return [_verdict(_maker(candidate), original, device, mode, request) for mode in modes]


@dataclass(frozen=True)
class _Given(Reference):
    """A reference that no file defines."""

    def resized(self, sizes: Mapping[str, int | float]) -> Reference:
        """None: nobody knows which numbers are sizes.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"a module has no sizes to change: {sizes}")


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)


class _ModuleContender(Contender):
    """Makes modules of this process."""

    def __init__(self, make: Callable[..., nn.Module], device: torch.device, exemptions: Exemptions) -> None:
        self.exemptions = exemptions
        self._make = make
        self._device = device

    def model(self, source: Source, mode: Mode, state: Mapping[str, torch.Tensor] | None) -> tested.Model:
        return tested.Model(prepare_model(source.reference, mode, self._device, self._make, state))


def _verdict(
    make: Callable[..., nn.Module], original: Reference, device: torch.device, mode: Mode, request: CheckRequest
) -> CheckReport:
    started = time.perf_counter()
    told: list[object] = []
    teller = Teller(told.append)
    log = StageLog(teller)
    contender = _ModuleContender(make, device, exemptions_of(request.declared))
    with reference_runs(None):
        accuracy = Accuracy.under(settings_here(lambda: device.type), request.accuracy)
        draw = Draw(request.seed or 0)
        answers = Answers.consult(Source(original, device), mode, accuracy, draw=draw)
    teller.judged = answers, contender
    verdict = examine(answers, contender, log)
    subject = Subject(device_of(device).name, str(device), None, tuple(request.declared))
    refusals = tuple(one for one in told if isinstance(one, Refusal))
    seconds = time.perf_counter() - started
    return CheckReport(request, mode, subject, True, verdict, refusals, seconds)


def _maker(model: Model) -> Callable[..., nn.Module]:
    """Return a function that makes a new module each time, from `init_inputs` where the model is a class."""
    if isinstance(model, nn.Module):
        return lambda *_: copy.deepcopy(model)
    if isinstance(model, type):
        return model
    return lambda *_: _Function(model)


def _drawer(inputs: Inputs) -> Callable[[], Sequence[Any]]:
    """Return a function that draws inputs; given ones get their elements in another order: each value is one meant."""
    if callable(inputs):
        return inputs
    given = tuple(inputs)
    return lambda: [_shuffled(value) if isinstance(value, torch.Tensor) else value for value in given]


def _shuffled(value: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(value.numel(), device="cpu").to(value.device)
    return torch.empty_like(value).copy_(value.detach().flatten()[order].reshape(value.shape))


def _mode_of(model: Model) -> Mode:
    """The mode that a module is in; of a class, train mode, as modules are made."""
    return Mode.TRAIN if not isinstance(model, nn.Module) or model.training else Mode.EVAL


def _device_of(model: Model, inputs: Inputs) -> torch.device:
    """Where the module or the inputs are; the CPU where nothing says."""
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    given = [] if callable(inputs) else [value for value in inputs if isinstance(value, torch.Tensor)]
    return next((tensor.device for tensor in (*parameters, *given)), torch.device("cpu"))
