"""The subject of a study: a kernel and its reference on one device, for one problem."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch

from tunebench.tuner.device import Device
from tunebench.tuner.errors import KernelFolderError, UserError
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.oracle import Oracle
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.isolation import mention, progress
from tunebench.tuner.kernel import Kernel, Mode, ModelFactory, TunableModel, prepare_model
from tunebench.tuner.problem import Accuracy, Objective, Problem, Work
from tunebench.tuner.reference import Reference
from tunebench.tuner.users_code import users_code

_LARGEST = 2**63
"""Upper limit of whole numbers that databases hold."""


@dataclass(frozen=True)
class Foreseen:
    """The problem and the device of a subject, told before it is ready."""

    problem: Problem
    device: Device


@dataclass(frozen=True)
class Subject:
    """A kernel's model and its reference on one device, for one problem, with the same weights.

    Attributes:
        reference: the reference in the problem's mode, ready to call.
        model: the `ModelNew` that carries the reference's weights.
        answers: the reference's answers, and the reference for whatever else the gate asks.
    """

    kernel: Kernel
    problem: Problem
    device: Device
    reference: torch.nn.Module
    factory: ModelFactory
    model: TunableModel
    answers: Answers

    @property
    def oracle(self) -> Oracle:
        """The reference's answers at the problem's own sizes."""
        return self.answers.oracle

    @classmethod
    def prepare(
        cls,
        kernel: Kernel,
        factory: ModelFactory,
        reference: Reference,
        mode: Mode,
        device: Device,
        accuracy: Accuracy = Accuracy.TOLERANCE,
        objective: Objective = Objective.TIME,
    ) -> Subject:
        """Build both models on the device, in this mode, and ask the reference for its answers.

        Args:
            accuracy: how wrong a variant may be.
            objective: what a study minimises.

        Raises:
            UserError: the model cannot serve the reference's own inputs with a kernel, or takes them for another mode.
        """
        where, files = device.torch_device, kernel.folder
        source = Source(reference, where)
        with users_code("the reference's Model cannot be made", files):
            original = prepare_model(reference, mode, where)
        state, make = original.state_dict(), cast(Callable[..., torch.nn.Module], factory)
        with users_code("ModelNew cannot be made like Model", files):
            model = cast(TunableModel, prepare_model(reference, mode, where, make, state))

        def begun(_: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
            with contextlib.suppress(Exception):  # whatever is wrong with it is told below
                if isinstance(problem := model.identify(*inputs), Problem):  # of those in float64 there may be none
                    first.remove()
                    mention(Foreseen(problem.at(accuracy, objective), device))

        with users_code("the reference does not run", files):
            first = original.register_forward_pre_hook(begun)
            hook = original.register_forward_hook(lambda *_: progress())
            answers = Answers.consult(source, mode, accuracy, Model(original))
            hook.remove()
            first.remove()
        with users_code("problem()", files):
            problem = model.identify(*answers.oracle.cases[0].inputs)
        if problem is None:
            raise UserError(f"kernel '{kernel.name}' cannot serve its reference's inputs: {model.reason}")
        if not isinstance(problem, Problem):
            raise KernelFolderError(f"{kernel.path}: problem() returns {type(problem).__name__}, not a Problem")
        kernel.require_axes(problem)
        if len(kernel.modes) > 1 and problem.options.get("mode") != mode:
            raise UserError(
                f"kernel '{kernel.name}' in mode '{mode}' takes its inputs for the problem {problem}: "
                f"its `problem` must give the option mode={mode}"
            )
        return cls(kernel, problem.at(accuracy, objective), device, original, factory, model, answers)

    @property
    def work(self) -> Work:
        """The least that one call must do."""
        with users_code("work()", self.kernel.folder):
            work = self.kernel.work(self.problem)
        if not isinstance(work, Work):
            raise KernelFolderError(f"{self.kernel.path}: work() returns {type(work).__name__}, not a Work")
        return work

    @property
    def recorded_work(self) -> Work | None:
        """The same in whole numbers; None where no database holds such numbers."""
        work = self.work
        return Work(int(work.bytes), int(work.operations)) if max(work.bytes, work.operations) < _LARGEST else None
