"""The request for a check, and the files that it submits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import Field

from tunebench.studies.request.options import (
    HOW_WRONG,
    OF_DATACLASS,
    Compiler,
    Declaration,
    Declared,
    Device,
    Dtype,
    Settings,
    Sizes,
    Text,
)
from tunebench.studies.request.text import LONGEST, read_path, read_values
from tunebench.tuner.configuration import Value
from tunebench.tuner.gate.refusal import Claim
from tunebench.tuner.problem import Accuracy


@pydantic.dataclasses.dataclass(frozen=True, config=OF_DATACLASS)
class CheckRequest:
    """The request for a check.

    Attributes:
        target: a shipped kernel's name, a kernel folder, a study file, a trial's number, or a `.py` file that defines
            `ModelNew`. What a study file or a trial says stands where nothing is said here.
        accuracy, settings: None for what the target says, and else the tolerance, and this process's settings.
        database: where trials are; None for the default.
    """

    target: str
    problems: Annotated[str | Path | None, Text(metavar="FOLDER", read=read_path)] = None
    """KernelBench's folder: level_1_problem_23_sample_0_kernel.py is judged against level1/23_*.py in it."""
    reference: Annotated[str | None, Text(metavar="FILE")] = None
    """The file with Model, get_inputs and get_init_inputs. Default: TARGET."""
    configuration: Annotated[Mapping[str, Value], Text("--config", "NAME=VALUE", read_values)] = field(
        default_factory=dict
    )
    """A kernel's tunable, in place of its default; repeatable."""
    sizes: Sizes = field(default_factory=dict)
    dtype: Dtype = None
    accuracy: Annotated[Accuracy | None, Text(metavar="NAME"), Field(description=HOW_WRONG)] = None
    settings: Settings = None
    modes: Annotated[Sequence[str] | None, Text("--mode", "MODE")] = None
    """eval or train. Default: every mode of the kernel; for a file, train as in KernelBench."""
    device: Device = None
    compiler: Compiler = None
    architecture: Annotated[str | None, Text("--arch", "sm_NN")] = None
    """A GPU that a kernel has to build for as well. Default: sm_90 on the CPU, where NVRTC is installed."""
    seconds: Annotated[float, Field(ge=1, le=LONGEST)] = 600.0
    """Seconds; a check of one mode that takes longer is refused."""
    require: Annotated[Claim | None, Text(metavar="problem|drop-in"), Field(title="requirement")] = None
    """Required for a pass. problem: right values at the problem's own sizes, memory, honesty. drop-in: also whatever
    else a caller does with the reference. Default: problem for a file, drop-in for a kernel."""
    jobs: Annotated[int, Field(ge=1, le=256)] = 1
    """The number of checks that run at a time."""
    declared: Declared = ()
    database: str | Path | None = None


@dataclass(frozen=True)
class Submission:
    """Files to be judged, read once: what is in them later is nobody's.

    Attributes:
        reference: path and text of the file with `Model`, `get_inputs` and `get_init_inputs`.
        candidate: path and text of the file with `ModelNew`; None where it is the same.
        sizes, dtype, device, declared, accuracy, settings: as in `CheckRequest`.
    """

    reference: tuple[Path, str]
    candidate: tuple[Path, str] | None
    sizes: Mapping[str, int | float]
    dtype: str | None
    device: str | None
    declared: Sequence[Declaration]
    accuracy: Accuracy = Accuracy.TOLERANCE
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file with `ModelNew`."""
        return (self.candidate or self.reference)[0]
