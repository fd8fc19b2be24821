"""Keywords of Python's face, for type checkers; made by `tunebench.studies.faces.cli.reference`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypedDict


class BestOptions(TypedDict, total=False):
    """The keywords of `best`."""

    device: str | None
    dtype: str | None
    accuracy: str | None
    architecture: str | None
    compiler: str | None
    any_source: bool | None


class BundleOptions(TypedDict, total=False):
    """The keywords of `bundle`."""

    architectures: Sequence[str] | None
    problems: str | Path | None


class CheckOptions(TypedDict, total=False):
    """The keywords of `check`."""

    problems: str | Path | None
    configuration: Mapping[str, bool | int | float | str] | None
    sizes: Mapping[str, int | float] | None
    dtype: str | None
    accuracy: str | None
    settings: Mapping[str, str] | None
    modes: Sequence[str] | None
    device: str | None
    compiler: str | None
    architecture: str | None
    seconds: float | None
    seed: int | None
    require: str | None
    jobs: int | None
    box: str | None
    declared: Sequence[str] | None


class CompareOptions(TypedDict, total=False):
    """The keywords of `compare`."""

    mode: str | None
    device: str | None
    compiler: str | None
    sizes: Mapping[str, int | float] | None
    dtype: str | None
    settings: Mapping[str, str] | None
    box: str | None
    declared: Sequence[str] | None


class ExplainOptions(TypedDict, total=False):
    """The keywords of `explain`."""

    recorded: bool | None
    again: bool | None


class ExportOptions(TypedDict, total=False):
    """The keywords of `export`."""

    form: str | None
    sizes: Mapping[str, int | float] | None
    dtype: str | None
    mode: str | None
    device: str | None
    trial: int | None
    any_source: bool | None


class FrontierOptions(TypedDict, total=False):
    """The keywords of `frontier`."""

    device: str | None
    dtype: str | None
    mode: str | None
    trials: int | None
    seconds: float | None


class MissesOptions(TypedDict, total=False):
    """The keywords of `misses`."""

    device: str | None
    tuned: bool | None


class NewOptions(TypedDict, total=False):
    """The keywords of `new`."""

    problem: str | Path | None
    block: str | None


class RegressOptions(TypedDict, total=False):
    """The keywords of `regress`."""

    device: str | None
    compiler: str | None
    modes: Sequence[str] | None
    sizes: Mapping[str, int | float] | None
    dtype: str | None
    kernels: Sequence[str | Path] | None
    repository: str | Path | None
    threshold: float | None


class ServeJudgeOptions(TypedDict, total=False):
    """The keywords of `serve_judge`."""

    host: str | None
    port: int | None
    key: str | Path | None
    jobs: int | None
    box: str | None
    seconds: float | None
    rate: float | None
    longest: int | None


class SweepOptions(TypedDict, total=False):
    """The keywords of `sweep`."""

    device: str | None
    devices: Sequence[str] | None
    workers: int | None
    executor: str | None
    address: str | None
    trials: int | None
    seconds: float | None
    settings: Mapping[str, str] | None
    ship: bool | None


class TrialsOptions(TypedDict, total=False):
    """The keywords of `trials`."""

    device: str | None
    dtype: str | None
    accuracy: str | None
    architecture: str | None
    compiler: str | None
    status: Sequence[str] | None
    sampler: str | None
    study: int | None
    tunables: Mapping[str, bool | int | float | str | Sequence[bool | int | float | str]] | None
    since: datetime | None
    until: datetime | None
    fastest: bool | None


class TuneOptions(TypedDict, total=False):
    """The keywords of `tune`."""

    device: str | None
    devices: Sequence[str] | None
    workers: int | None
    executor: str | None
    address: str | None
    trials: int | None
    seconds: float | None
    settings: Mapping[str, str] | None
    sampler: str | None
    seed: int | None
    compiler: str | None
    modes: Sequence[str] | None
    compile: bool | None
    fresh: bool | None
    stop_early: bool | None
    accuracy: str | None
    objective: str | None
    sizes: Mapping[str, int | float] | None
    dtype: str | None
    tunables: Mapping[str, Sequence[bool | int | float | str]] | None
    start: Sequence[Mapping[str, bool | int | float | str]] | None


class WarmOptions(TypedDict, total=False):
    """The keywords of `warm`."""

    problems: str | Path | None
    device: str | None
    architecture: str | None
