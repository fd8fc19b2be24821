"""Specifications of what a sandbox runs: files that nobody vouches for, by content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.gate.boundary.box import Walls
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


@dataclass(frozen=True)
class SandboxSpec:
    """A specification of what a sandbox runs; it travels to the process by pickle, from the judge and never back.

    Attributes:
        path: the file, or the folder of the files, whose places are named in errors.
        device: where its models and inputs are.
        settings: of PyTorch's, put in force first.
        load: runs it, and has the `Watch` note what is changed by whatever runs after its `start`.
        is_reference: whatever is on trial has no part in it.
        prepares: its models are made ready before they are called.
        walls: of the box that it runs in; None for none.
        is_traced: torch's tracer is imported before anything is asked: its first question is about torch.compile.
    """

    path: Path
    device: torch.device
    settings: Mapping[str, str]
    load: Callable[[Watch], Loaded]
    is_reference: bool = False
    prepares: bool = False
    walls: Walls | None = None
    is_traced: bool = False

    def open(self, watch: Watch) -> Loaded:
        """Run it; see `load`."""
        apply_settings(self.settings, self.device.type)
        return self.load(watch)


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
        prepare: run before the candidate is.
        settings: of PyTorch's, put in force before that.
        walls: of the boxes that both run in; None for none.
    """

    reference: tuple[Path, str]
    candidate: tuple[Path, str] | None
    sizes: Sizes
    dtype: str | None
    device: torch.device
    on_trial: str = "ModelNew"
    prepare: Callable[[], object] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    walls: Walls | None = None

    @property
    def original(self) -> SandboxSpec:
        """The reference, whose `Model` is asked."""
        return replace(self._spec(self.reference[0], self._load_original), is_reference=True)

    @property
    def contender(self) -> SandboxSpec:
        """The candidate, whose `ModelNew` is asked, beside the reference."""
        path, _ = self.candidate or self.reference
        return self._spec(path, self._load_contender)

    def _spec(self, path: Path, load: Callable[[Watch], Loaded]) -> SandboxSpec:
        return SandboxSpec(path, self.device, self.settings, load, walls=self.walls)

    def _load_original(self, _watch: Watch) -> Loaded:  # a reference may change what it likes
        path, text = self.reference
        return Loaded(load_reference(path, self.sizes, self.dtype, text), self.device, None)

    def _load_contender(self, watch: Watch) -> Loaded:
        if self.prepare is not None:
            self.prepare()
        if self.candidate is None:
            watch.start()
        loaded = self._load_original(watch)
        factory = loaded.reference.candidate
        if self.candidate is not None:
            watch.start()  # what the reference changes is not the candidate's
            factory = load_candidate(*self.candidate, self.on_trial)
        if factory is None:
            raise KernelFolderError(
                f"{self.reference[0]}: no ModelNew; define it there, or name its reference with --reference"
            )
        return replace(loaded, make=_maker(factory))


def _maker(factory: Callable[..., nn.Module]) -> MakeModel:
    def make(source: Source, mode: Mode, state: Mapping[str, Any] | None) -> Model:
        module = prepare_model(source.reference, mode, source.device, factory, state)
        return Model(module, memory=_memory_of(module))

    return make


def _memory_of(module: nn.Module) -> type[PoisonedMemory | PoisonedAllocations]:
    """A model that can be pinned to a plan runs its reference's operations under what intercepts those of C++."""
    return PoisonedMemory if hasattr(module, "pin") else PoisonedAllocations
