"""The requests of `bench`, `frontier`, `optimize`, `compare` and `export`."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import Field

from tunebench.studies.request.options import (
    OF_DATACLASS,
    Compiler,
    Declared,
    Device,
    Dtype,
    InABox,
    Settings,
    Sizes,
    Text,
)
from tunebench.studies.request.text import LARGEST, LONGEST, read_sizes, read_values
from tunebench.tuner.configuration import Value
from tunebench.tuner.gate.boundary.box import Box
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy


@pydantic.dataclasses.dataclass(frozen=True, config=OF_DATACLASS)
class BenchRequest:
    """The options of `bench`, for all targets alike."""

    device: Device = None
    modes: Annotated[Sequence[str], Text("--mode", "MODE")] = ()
    """eval, train or frozen. Default: every mode."""
    sizes: Sizes = field(default_factory=dict)
    dtype: Dtype = None
    accuracies: Annotated[Sequence[Accuracy], Text("--accuracy", "NAME")] = ()
    """How wrong a tuned model may be: tolerance or eager, see `tune`; repeatable. Default: as the settings permit."""
    settings: Settings = None
    batches: Annotated[Sequence[Annotated[int, Field(ge=1, le=LARGEST)]], Text("--batch", "BATCH")] = ()
    """A batch size, or first size where there is no batch; repeatable. Default: as it is."""
    configuration: Annotated[Mapping[str, Value] | None, Text("--config", "NAME=VALUE", read_values)] = None
    """Time this configuration, not the model's own choice; repeatable."""
    compiled: Annotated[bool, Text("--compile/--no-compile")] = True
    """Time torch.compile too, in its default mode and in max-autotune, or not."""
    seconds: Annotated[float, Field(ge=0.1, le=LONGEST)] = 5.0
    """Seconds of timing of each case."""
    database: str | Path | None = None


@pydantic.dataclasses.dataclass(frozen=True, config=OF_DATACLASS)
class FrontierRequest:
    """The options of `frontier`."""

    device: Device = None
    dtype: Annotated[str, Text(metavar="DTYPE")] = "float32"
    """The operands' type: float32, float16 or bfloat16. Default: float32."""
    mode: Annotated[Mode, Text(metavar="MODE"), Field(strict=False)] = Mode.EVAL
    """eval, where every call converts the weight, or frozen, where what is made of it is kept. Default: eval."""
    trials: Annotated[int, Field(ge=1, le=LARGEST)] = 4
    """Configurations tried of each class of them that rounds alike. Default: 4."""
    seconds: Annotated[float, Field(ge=0.1, le=LONGEST)] = 300.0
    """Begin no configuration of any class after so many seconds; the fastest are then timed once more. Default: 300."""


@pydantic.dataclasses.dataclass(frozen=True, config=OF_DATACLASS)
class OptimizeRequest:
    """The options of `optimize`."""

    device: Device = None
    dtype: Dtype = None
    sizes: Sizes = field(default_factory=dict)
    seconds: Annotated[float, Field(ge=0, le=LONGEST)] = 300.0
    """Seconds for the studies of all regions together. Default: 300."""


@pydantic.dataclasses.dataclass(frozen=True, config=OF_DATACLASS)
class CompareRequest:
    """The options of `compare`; a trial brings its own sizes, dtype and settings."""

    mode: str | None = None
    """eval or train. Default: the kernel's first mode."""
    device: Device = None
    compiler: Compiler = None
    sizes: Sizes = field(default_factory=dict)
    dtype: Dtype = None
    settings: Settings = None
    box: InABox = Box.AUTO
    declared: Declared = ()


class ExportForm(enum.StrEnum):
    """The form in which a tuned model is exported."""

    FILE = "file"
    HF_KERNELS = "hf-kernels"


@pydantic.dataclasses.dataclass(frozen=True, config=OF_DATACLASS)
class ExportRequest:
    """A kernel to export, and the options of `export`.

    Attributes:
        kernel: a shipped kernel's name, or a kernel folder's path.
        db: see `connect`.
    """

    kernel: str
    form: Annotated[ExportForm, Text("--format", "NAME")] = ExportForm.FILE
    """file, or hf-kernels for a project of Hugging Face's kernel-builder. Default: file."""
    sizes: Annotated[Mapping[str, int | float], Text("--size", "NAME=NUMBER", read_sizes)] = field(default_factory=dict)
    """A constant of the reference; repeatable. Default: KernelBench's."""
    dtype: Annotated[str | None, Text(metavar="DTYPE")] = None
    """Default: the reference's own."""
    mode: str | None = None
    """eval or train. Default: train, where that makes a difference."""
    device: Annotated[str | None, Text(metavar="NAME")] = None
    """Results of this device. Default: this machine's, else any."""
    trial: Annotated[int | None, Field(ge=1, le=LARGEST)] = None
    """This trial of the database. Default: the best result."""
    any_source: bool = False
    """Also results of other versions of the kernel's source. Default: not."""
    db: str | Path | None = None
