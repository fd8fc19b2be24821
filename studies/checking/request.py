"""The request for a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import Field

from tunebench.studies.request.options import (
    HOW_WRONG,
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
from tunebench.studies.request.text import LONGEST, read_path, read_values
from tunebench.tuner.configuration import Value
from tunebench.tuner.gate.boundary.box import Box
from tunebench.tuner.gate.draw import LARGEST_SEED, Draw
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
    seed: Annotated[int | None, Field(ge=0, le=LARGEST_SEED)] = None
    """The seed of the questions; the same seed asks the same ones. Default: a new one, which the verdict says."""
    require: Annotated[Claim | None, Text(metavar="problem|drop-in"), Field(title="requirement")] = None
    """Required for a pass. problem: right values at the problem's own sizes, memory, honesty. drop-in: also whatever
    else a caller does with the reference. Default: problem for a file, drop-in for a kernel."""
    jobs: Annotated[int, Field(ge=1, le=256)] = 1
    """The number of checks that run at a time."""
    box: InABox = Box.AUTO
    declared: Declared = ()
    database: str | Path | None = None

    def seeded(self) -> CheckRequest:
        """Return the same with a seed: one that nobody knows beforehand where none is given."""
        return self if self.seed is not None else replace(self, seed=Draw.fresh().seed)
