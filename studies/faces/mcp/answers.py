"""Schemas of the tools' answers: `result` is what the command prints with `--json`.

Answers may get more members; what is named here stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Value = bool | int | float | str
Content = TypeVar("Content")


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class Problem(_Answer):
    """The shapes, dtype and options that a measurement belongs to."""

    axes: Mapping[str, int]
    dtype: str
    options: Mapping[str, str]


class Ratio(_Answer):
    """How many times faster one is than another, with its interval."""

    value: float
    low: float
    high: float
    rounds: int | None = None


class KernelAnswer(_Answer):
    """A kernel that can be named to the other tools by its `target`."""

    target: str
    kernel: str | None
    path: str | None
    modes: Sequence[str]
    dtypes: Sequence[str]
    sources: Sequence[str]
    sizes: Mapping[str, float] = Field(description="Constants of its reference that `sizes` may change.")
    tunables: Sequence[str]
    source_digest: str | None
    error: str | None = Field(description="Why it does not load; null where it does.")


class TunableAnswer(_Answer):
    """A tunable with its values."""

    name: str
    values: Sequence[Value]
    default: Value
    conditional: bool = Field(description="It matters in some configurations alone, and is absent from the others.")
    host: bool


class SpaceAnswer(_Answer):
    """The space that a study of a kernel would search, in one mode."""

    kernel: str
    mode: str
    problem: Problem
    device: str
    valid_configurations: int
    default: Mapping[str, Value]
    tunables: Sequence[TunableAnswer]
    constraints: Sequence[str]


class StageAnswer(_Answer):
    """A stage of the correctness gate."""

    name: str
    passed: bool
    seconds: float
    detail: str


class CheckAnswer(_Answer):
    """The gate's verdict in one mode."""

    target: str
    mode: str
    device: str
    configuration: Mapping[str, Value] | None
    stages: Sequence[StageAnswer]
    tolerance: float
    errors: Mapping[str, Any] | None
    reason: str = Field(description="The first refusal in one line; empty where there was none.")
    required: str
    passed: bool = Field(description="Whether what is required holds.")
    right_for_problem: bool
    drop_in: bool


class EvaluationAnswer(_Answer):
    """A configuration (`a`), through the gate and timed against the default or the reference (`b`)."""

    a: str
    b: str
    problem: str
    device: str
    eager: str = Field(description="Which of PyTorch's settings were in force.")
    decision: str | None = Field(description="faster, slower, tie or inconclusive; null where one was refused.")
    refusal: str
    ratio: Ratio | None = Field(description="How many times faster a is than b.")
    control: Ratio | None
    medians_ms: Mapping[str, float]
    samples_ms: Mapping[str, Sequence[float]]


class StudyAnswer(_Answer):
    """The outcome of a study, in one mode."""

    kernel: str
    study: int
    problem: Problem
    eager: str = Field(description="Which of PyTorch's settings the reference had.")
    device: str
    trials: int
    valid_configurations: int
    counts: Mapping[str, int] = Field(description="How many trials ended how.")
    refusals: Mapping[str, int]
    ending: str
    proven: bool
    unasked: Sequence[str] = Field(description="What there was no time to ask; the command `confirm` asks it.")
    seconds: float
    best: Mapping[str, Value] | None
    medians_ms: Mapping[str, float] | None
    speedups: Mapping[str, Mapping[str, Any]]
    trusted: bool | None
    conclusive: bool | None = Field(description="False: the final rounds say nothing, and `best` only led the search.")


class TrialAnswer(_Answer):
    """A trial."""

    trial: int = Field(description="Its number, for `explain`.")
    study: int
    kernel: str
    problem: Problem
    eager: str = Field(description="Which of PyTorch's settings the reference had.")
    device: str
    status: str
    configuration: Mapping[str, Value]
    median_ms: float | None
    message: str
    confirmed: bool = Field(description="Whether it won conclusive final rounds; else its ratios are unconfirmed.")
    over_reference: Ratio | None
    over_default: Ratio | None


class Verdict(_Answer):
    """The gate's verdict on a trial, stage by stage."""

    passed: bool
    stages: Sequence[StageAnswer]
    tolerance: float
    errors: Mapping[str, Any] | None
    reason: str


class DetailsAnswer(TrialAnswer):
    """Everything about a trial."""

    environment: Mapping[str, Any]
    build: Mapping[str, Any] | None
    verdict: Verdict | None
    measurement: Mapping[str, Any] | None
    seconds: Mapping[str, float]
    comparisons: Sequence[Mapping[str, Any]]
    explanation: Mapping[str, Any] | None


class Answer(BaseModel, Generic[Content]):
    """The answer of a tool."""

    result: Content


Kernels = Answer[Sequence[KernelAnswer]]
Spaces = Answer[Sequence[SpaceAnswer]]
Checks = Answer[Sequence[CheckAnswer]]
Evaluation = Answer[EvaluationAnswer]
Studies = Answer[Sequence[StudyAnswer]]
Trials = Answer[Sequence[TrialAnswer]]
Details = Answer[DetailsAnswer]
