"""Specifications of what a sandbox runs: files that nobody vouches for, by content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.gate.memory import PoisonedAllocations, PoisonedMemory
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.process_state import Watch
from tunebench.tuner.gate.sources import Sizes, Source
from tunebench.tuner.kernel import Mode, prepare_model
from tunebench.tuner.reference import Reference, load_candidate, load_reference
from tunebench.tuner.settings import apply_settings

MakeModel = Callable[[Source, Mode, Mapping[str, Any] | None], Model]
"""Makes a model beside a reference at some sizes, in a mode, with these weights."""


@dataclass(frozen=True)
class Loaded:
    """The result of running the files.

    Attributes:
        make: None where models are the reference's own.
    """

    reference: Reference
    device: torch.device
    make: MakeModel | None

    def source(self, sizes: Sizes) -> Source:
        """Return the reference at some sizes."""
        reference = self.reference
        return Source(reference if sizes == reference.numbers else reference.resized(sizes), self.device)


class SandboxSpec(Protocol):
    """A specification of what a sandbox runs; it travels to the process by pickle, from the judge and never back."""

    prepares: ClassVar[bool]
    """Whether its models are made ready before they are called."""

    @property
    def path(self) -> Path:
        """The file, or the folder of the files, whose places are named in errors."""

    @property
    def device(self) -> torch.device:
        """Where its models and inputs are."""

    def open(self, watch: Watch) -> Loaded:
        """Run it.

        Args:
            watch: notes what is changed by whatever runs after its `start`.
        """


@dataclass(frozen=True)
class Files:
    """Files by content: a file is read once.

    Attributes:
        reference: path and text of the file with `Model`, `get_inputs` and `get_init_inputs`.
        candidate: path and text of the file with the model on trial; None where it is the same.
        sizes: numeric constants of the reference's file to change.
        dtype: what models and inputs are converted to; None leaves them as the file makes them.
        device: such as `cpu` or `cuda:0`.
        on_trial: the name of the candidate's model.
        prepare: run before the files are.
        settings: of PyTorch's, put in force before that.
    """

    reference: tuple[Path, str]
    candidate: tuple[Path, str] | None
    sizes: Sizes
    dtype: str | None
    device: torch.device
    on_trial: str = "ModelNew"
    prepare: Callable[[], object] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReferenceSpec:
    """Files whose `Model` is asked."""

    files: Files
    prepares: ClassVar[bool] = False

    @property
    def path(self) -> Path:
        return self.files.reference[0]

    @property
    def device(self) -> torch.device:
        return self.files.device

    def open(self, watch: Watch) -> Loaded:
        """Run the reference; see `SandboxSpec.open`."""
        apply_settings(self.files.settings, self.device.type)
        watch.start()
        return Loaded(_reference_of(self.files), self.device, None)


@dataclass(frozen=True)
class CandidateSpec(ReferenceSpec):
    """Files whose `ModelNew` is asked."""

    @property
    def path(self) -> Path:
        return (self.files.candidate or self.files.reference)[0]

    def open(self, watch: Watch) -> Loaded:
        """Run the reference and the candidate; see `SandboxSpec.open`."""
        apply_settings(self.files.settings, self.device.type)
        if self.files.prepare is not None:
            self.files.prepare()
        watch.start()
        reference = _reference_of(self.files)
        if self.files.candidate is not None:
            watch.start()  # what the reference changes is not the candidate's
            factory = load_candidate(*self.files.candidate, self.files.on_trial)
        elif reference.candidate is not None:
            factory = reference.candidate
        else:
            raise KernelFolderError(
                f"{self.path}: no ModelNew; define it there, or name its reference with --reference"
            )
        return Loaded(reference, self.device, _maker(factory))


def _reference_of(files: Files) -> Reference:
    path, text = files.reference
    return load_reference(path, files.sizes, files.dtype, text)


def _maker(factory: Callable[..., nn.Module]) -> MakeModel:
    def make(source: Source, mode: Mode, state: Mapping[str, Any] | None) -> Model:
        module = prepare_model(source.reference, mode, source.device, factory, state)
        return Model(module, memory=_memory_of(module))

    return make


def _memory_of(module: nn.Module) -> type[PoisonedMemory | PoisonedAllocations]:
    """A model that can be pinned to a plan runs its reference's operations under what intercepts those of C++."""
    return PoisonedMemory if hasattr(module, "pin") else PoisonedAllocations
