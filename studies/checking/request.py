"""What a check is asked."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tunebench.tuner.build import CompilerName
from tunebench.tuner.configuration import Value
from tunebench.tuner.gate.refusal import Claim
from tunebench.tuner.problem import Accuracy

SECONDS = 600.0


class Declaration(enum.StrEnum):
    """What a file may declare of its model, as a kernel's folder does; it is part of the verdict."""

    ATOMICS = "atomics"
    """Sums come in any order, so that two runs may differ in their last bits."""
    REWRITES_ALGEBRA = "rewrites-algebra"
    """Where the reference is not finite, the output may be so in another way."""
    DENSE = "dense"
    """The output may lie in memory in any order of its axes, without gaps."""


@dataclass(frozen=True)
class CheckRequest:
    """What to check.

    Attributes:
        target: a shipped kernel's name, a kernel folder, a study file, a trial's number, or a `.py` file that defines
            `ModelNew`. What a study file or a trial says stands where nothing is said here.
        reference: the file with `Model`, `get_inputs` and `get_init_inputs`, where the target does not define them.
        configuration: values of a kernel's tunables in place of the default's.
        sizes: numeric constants of the reference's file to change.
        dtype: what models and inputs are converted to; None leaves them as the reference's file makes them.
        accuracy: how wrong it may be; None for what the target says, and else the tolerance.
        settings: of PyTorch's, in force while both models run; None for what the target says, and else this process's.
        modes: None for every mode of a kernel; for a file, train mode, as KernelBench runs it.
        architecture: of a GPU that a kernel has to build for, such as `sm_90`, beside running where it is checked; None
            for that of the CPU's kernels only, where NVRTC is installed.
        seconds: a check that takes longer is ended, and refused.
        require: what has to hold for the check to be passed; None for `problem` of a file and `drop-in` of a kernel.
        declared: what is declared of a file; a kernel's folder declares it itself.
        database: where trials are; None for the default.
    """

    target: str
    reference: str | None = None
    configuration: Mapping[str, Value] = field(default_factory=dict)
    sizes: Mapping[str, int | float] = field(default_factory=dict)
    dtype: str | None = None
    accuracy: Accuracy | None = None
    settings: Mapping[str, str] | None = None
    modes: Sequence[str] | None = None
    device: str | None = None
    compiler: CompilerName | None = None
    architecture: str | None = None
    seconds: float = SECONDS
    require: Claim | None = None
    declared: Sequence[Declaration] = ()
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
