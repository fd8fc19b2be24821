"""Conversion of the engine's objects to the parts of entries, and back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from tunebench.db.entries import entry as parts
from tunebench.tuner.build import Build
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import (
    Baseline,
    Comparison,
    Conditions,
    ErrorFigures,
    Measurement,
    Ratio,
    Stage,
    TrialResult,
    Verdict,
    is_conclusive,
)
from tunebench.tuner.search.warm_start import WarmStart
from tunebench.tuner.study.history import StudyDescription
from tunebench.tuner.timing.statistics import control_of

_FIGURES = tuple(one.name for one in fields(ErrorFigures))
_CONDITIONS = tuple(one.name for one in fields(Conditions))


def study_facts(
    description: StudyDescription, origin: parts.Origin, begun_at: datetime, warm_starts: Sequence[WarmStart]
) -> parts.StudyFacts:
    """A study that begins now in the database of that origin."""
    return parts.StudyFacts(
        origin=origin,
        kernel=description.kernel,
        source_digest=description.source_digest,
        space_digest=description.space_digest,
        problem=problem_facts(description.problem),
        device=device_facts(description.device),
        compiler=description.compiler,
        sampler=description.sampler,
        seed=description.seed,
        begun_at=begun_at,
        warm_starts=tuple(parts.WarmStartFacts(dict(one.configuration), one.origin) for one in warm_starts),
    )


def problem_facts(problem: Problem) -> parts.ProblemFacts:
    """A problem."""
    return parts.ProblemFacts(problem.dtype, dict(problem.axes), dict(problem.options))


def device_facts(device: Device) -> parts.DeviceFacts:
    """A device, without the place where its card sits."""
    return parts.DeviceFacts(**{one.name: getattr(device, one.name) for one in fields(parts.DeviceFacts)})


def trial_facts(number: int, result: TrialResult, environment: Environment, recorded_at: datetime) -> parts.TrialFacts:
    """A trial of that number; the environment is that of a result which does not name its own."""
    build, verdict, measurement = result.build, result.verdict, result.measurement
    return parts.TrialFacts(
        number=number,
        configuration=dict(result.configuration),
        environment=result.environment or environment,
        status=result.status,
        build=None if build is None else _build_facts(build),
        build_cached=None if build is None else build.cached,
        verdict=None if verdict is None else _verdict_facts(verdict),
        measurement=None if measurement is None else _measurement_facts(measurement),
        recorded_at=recorded_at,
        seconds=dict(result.seconds),
        message=result.message,
    )


def late_refusal_facts(stage: Stage, recorded_at: datetime) -> parts.LateRefusalFacts:
    """A stage that refuses a trial after it was recorded."""
    return parts.LateRefusalFacts(stage.name, stage.seconds, stage.detail, recorded_at)


def comparison_facts(comparison: Comparison, environment: Environment, concluded_at: datetime) -> parts.ComparisonFacts:
    """A comparison that ended just now."""
    return parts.ComparisonFacts(
        environment=comparison.environment or environment,
        concluded_at=concluded_at,
        contenders={
            name: parts.ContenderFacts(median_ms, comparison.samples_ms[name])
            for name, median_ms in comparison.medians_ms.items()
        },
        speed_ups={
            baseline.value: parts.SpeedUpFacts(ratio.value, ratio.low, ratio.high, ratio.rounds, ratio.confidence)
            for baseline, ratio in comparison.speedups.items()
        },
        missing_baselines={name.value: reason for name, reason in comparison.missing.items()} or None,
        **vars(comparison.conditions),
    )


def _build_facts(build: Build) -> parts.BuildFacts:
    return parts.BuildFacts(
        variant_digest=build.variant_digest,
        compiler=build.compiler,
        compiler_version=build.compiler_version,
        code_sha256=hashlib.sha256(build.code).hexdigest(),
        code_bytes=len(build.code),
        log=build.log,
        seconds=build.seconds,
        figures=dict(build.figures),
    )


def _verdict_facts(verdict: Verdict) -> parts.VerdictFacts:
    figures: dict[str, Any] = dict.fromkeys(_FIGURES) if verdict.errors is None else dict(vars(verdict.errors))
    figures = {name: _unless_nan(value) for name, value in figures.items()}
    tolerance = _unless_nan(verdict.tolerance)
    return parts.VerdictFacts(verdict.passed, verdict.reason, tolerance, stages=verdict.stages, **figures)


def _unless_nan(value: float | None) -> float | None:
    """Return the value, or None where it is NaN."""
    return None if value is None or math.isnan(value) else value


def _measurement_facts(measurement: Measurement) -> parts.MeasurementFacts:
    values = dict(vars(measurement))
    return parts.MeasurementFacts(**vars(values.pop("conditions")), **values)


def device_of(facts: parts.DeviceFacts) -> Device:
    """The device; its index is 0, since where a card sits is not recorded."""
    return Device(index=0, **vars(facts))


def verdict_of(facts: parts.VerdictFacts) -> Verdict:
    """The verdict; what is not there beside a number of untouched elements was not a number.

    Raises:
        ValueError: it contradicts itself.
    """
    figures = {name: getattr(facts, name) for name in _FIGURES}
    for one in fields(ErrorFigures):
        if figures[one.name] is None and one.type == "float":
            figures[one.name] = math.nan
    errors = None if facts.untouched is None else ErrorFigures(**figures)
    tolerance = math.nan if facts.tolerance is None else facts.tolerance
    return Verdict(facts.passed, facts.stages, tolerance, errors, facts.reason)


def measurement_of(facts: parts.MeasurementFacts) -> Measurement:
    """The measurement."""
    values = dict(vars(facts))
    conditions = Conditions(**{name: values.pop(name) for name in _CONDITIONS})
    return Measurement(**values, conditions=conditions)


def result_of(facts: parts.TrialFacts) -> TrialResult:
    """Return a trial's result as it stands now, without its build.

    Raises:
        ValueError: it contradicts itself.
    """
    trial = facts.standing
    return TrialResult(
        Configuration(trial.configuration),
        trial.status,
        None,
        None if trial.verdict is None else verdict_of(trial.verdict),
        None if trial.measurement is None else measurement_of(trial.measurement),
        trial.message,
        trial.seconds,
    )


def ratio_of(facts: parts.SpeedUpFacts) -> Ratio:
    """The ratio."""
    return Ratio(facts.ratio, facts.low, facts.high, facts.rounds, facts.confidence)


def comparison_of(facts: parts.ComparisonFacts, best: Configuration) -> Comparison:
    """The comparison that a configuration has won.

    Raises:
        ValueError: a baseline is none.
    """
    found = {Baseline(name): ratio_of(one) for name, one in facts.speed_ups.items()}
    return Comparison(
        best=best,
        medians_ms={name: one.median_ms for name, one in facts.contenders.items()},
        samples_ms={name: one.samples_ms for name, one in facts.contenders.items()},
        speedups={baseline: found[baseline] for baseline in Baseline if baseline in found},
        missing={Baseline(name): reason for name, reason in (facts.missing_baselines or {}).items()},
        control=_control_of(facts),
        conditions=Conditions(**{name: getattr(facts, name) for name in _CONDITIONS}),
    )


def conclusive(facts: parts.ComparisonFacts) -> bool:
    """Whether a comparison says how its best compares with the reference, see `Comparison.conclusive`."""
    over_reference = facts.speed_ups.get(Baseline.REFERENCE)
    return is_conclusive(_control_of(facts), None if over_reference is None else ratio_of(over_reference))


def _control_of(facts: parts.ComparisonFacts) -> Ratio | None:
    return control_of({name: one.samples_ms for name, one in facts.contenders.items()})
