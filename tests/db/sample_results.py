"""Studies and results to put into databases: small, valid, and different where a number is given."""

from __future__ import annotations

import math
from dataclasses import replace

from tunebench.tuner.build import Build, CompilerName, KernelFigures
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem, Work
from tunebench.tuner.result import (
    Baseline,
    CacheRegime,
    Comparison,
    Conditions,
    ErrorFigures,
    LaunchShape,
    Measurement,
    Ratio,
    Stage,
    TrialResult,
    TrialStatus,
    Verdict,
)
from tunebench.tuner.study.history import StudyDescription
from tunebench.tuner.timing.statistics import control_ratio

H200 = Device(
    kind=DeviceKind.CUDA,
    index=0,
    name="NVIDIA H200",
    architecture="sm_90",
    uuid="GPU-1",
    multiprocessors=132,
    memory_bytes=150_000_000_000,
    l2_bytes=60_000_000,
)
H100 = replace(H200, name="NVIDIA H100", uuid="GPU-2", memory_bytes=85_000_000_000)
A100 = replace(H200, name="NVIDIA A100", uuid="GPU-3", architecture="sm_80", multiprocessors=108)

PROBLEM = Problem({"rows": 1024, "columns": 8192}, "float32", {"mode": "eval"})

ENVIRONMENT = Environment(
    tunebench="0.1.0",
    python="3.11.7",
    torch="2.9.0",
    cuda="13.0",
    driver="580.1",
    compiler="nvrtc 13.4",
    platform="Linux",
    host="host",
)

STUDY = StudyDescription(
    kernel="scalar_mul",
    source_digest="source-1",
    space_digest="space-1",
    problem=PROBLEM,
    device=H200,
    compiler=CompilerName.NVRTC,
    sampler="pool",
    seed=0,
)

PASSED = Verdict(
    passed=True,
    stages=(Stage("shapes", True, 0.001), Stage("values", True, 0.02, "2 cases")),
    tolerance=1e-4,
    errors=ErrorFigures(
        max_absolute=1e-6,
        max_relative=2e-7,
        relative_norm=1e-7,
        reference_max_relative=2e-7,
        reference_relative_norm=1e-7,
    ),
)
REFUSED = Verdict(
    passed=False,
    stages=(Stage("shapes", True, 0.001), Stage("values", False, 0.02, "case 1")),
    tolerance=1e-4,
    errors=ErrorFigures(
        max_absolute=math.inf,
        max_relative=math.nan,
        relative_norm=0.5,
        reference_max_relative=0.0,
        reference_relative_norm=0.0,
        first_wrong_index=3_000_000_000,
        untouched=7,
    ),
    reason="element 3000000000 is wrong",
)


CONDITIONS = Conditions(
    control_ms=0.1,
    sm_clock_mhz=1980,
    memory_clock_mhz=3201,
    temperature_c=41,
    throttle_reasons="sw_power_cap",
    foreign_processes=1,
)


def configuration(number: int) -> Configuration:
    """A configuration of its own for every number."""
    return Configuration({"block": 32 * (number + 1), "hint": "streaming", "unroll": number % 2 == 0})


def build(number: int, code: bytes | None = None) -> Build:
    """A build with two entry points, one of which the compiler says nothing of."""
    return Build(
        variant_digest=f"variant-{number}",
        compiler=CompilerName.NVRTC,
        compiler_version="nvrtc 13.4",
        code=b"cubin %d" % number if code is None else code,
        log=f"log of {number}",
        signatures={},
        figures={"scale": KernelFigures(32, 0, 0, 16, 4096), "tail": KernelFigures()},
        seconds=0.05,
        cached=number % 2 == 1,
    )


def measurement(median_ms: float, regime: CacheRegime = CacheRegime.COLD) -> Measurement:
    """Three samples around a median, none of them a short decimal."""
    return Measurement(
        samples_ms=(median_ms, median_ms * math.pi / 3, median_ms * math.e / 3),
        median_ms=median_ms,
        low_ms=median_ms * 0.9,
        high_ms=median_ms * 1.1,
        regime=regime,
        clock="cuda-event",
        energy_mj=median_ms * 700,
    )


def correct(number: int, median_ms: float = 1.0, regime: CacheRegime = CacheRegime.COLD) -> TrialResult:
    """A trial that was right and timed."""
    return TrialResult(
        configuration(number),
        TrialStatus.CORRECT,
        build(number),
        PASSED,
        # Not every one: the state of the device was not recorded in older revisions.
        replace(measurement(median_ms, regime), conditions=CONDITIONS if number % 2 else Conditions()),
        seconds={"compile": 0.05, "check": 0.021, "measure": 0.1},
        launches=(LaunchShape("scale", blocks=132, threads=256, shared=1024),),
    )


def failed(number: int, status: TrialStatus, message: str = "no good") -> TrialResult:
    """A trial that was not timed."""
    built = status in (TrialStatus.RUNTIME, TrialStatus.CORRECTNESS, TrialStatus.TIMEOUT)
    return TrialResult(
        configuration(number),
        status,
        build(number) if built else None,
        REFUSED if status is TrialStatus.CORRECTNESS else None,
        message=message,
        seconds={"compile": 0.05},
    )


def result(number: int, status: TrialStatus) -> TrialResult:
    """A trial of any status."""
    if status is TrialStatus.PRUNED:
        return replace(correct(number, 9.0), status=status, message="hopeless")
    return correct(number) if status is TrialStatus.CORRECT else failed(number, status)


def comparison(number: int, over_reference: float = 2.0, *, with_default: bool = True) -> Comparison:
    """A comparison that the configuration of that number has won."""
    samples = {"reference": (2.0, 2.1), "default": (1.5, 1.6), "copy": (0.9, 1.0), "best": (1.0, 1.1)}
    samples["control"] = samples["default" if with_default else "reference"]
    speedups = {
        Baseline.REFERENCE: Ratio(over_reference, over_reference * 0.99, over_reference * 1.01, 40, 0.95),
        Baseline.DEFAULT: Ratio(1.5, 1.4, 1.6, 40, 0.95),
        Baseline.COPY: Ratio(0.9, 0.8, 0.95, 40, 0.95),
    }
    if not with_default:
        del samples["default"], speedups[Baseline.DEFAULT]
    return Comparison(
        best=configuration(number),
        medians_ms={name: sum(values) / 2 for name, values in samples.items()},
        samples_ms=samples,
        speedups=speedups,
        missing={Baseline.COMPILED: "torch.compile: no compiler, 'g++' [0m\n"},
        unasked=("the winner across the gate's boundary", "compute-sanitizer on the finalists"),
        control=control_ratio(samples, "default" if with_default else "reference"),
        conditions=CONDITIONS,
        work=Work(bytes=4096, operations=1024),
        energies_mj={"best": 700.0, "reference": 900.5},
    )


def inconclusive(number: int) -> Comparison:
    """A comparison that leaves open how the best compares with the reference."""
    won = comparison(number)
    return replace(won, speedups={**won.speedups, Baseline.REFERENCE: Ratio(0.017, 0.006, 3.826, 8, 0.99)})


def told_apart(number: int) -> Comparison:
    """A comparison whose rounds found a difference between two copies of the default."""
    won = comparison(number)
    samples = {**won.samples_ms, "control": tuple(0.5 * sample for sample in won.samples_ms["default"])}
    return replace(won, samples_ms=samples, control=control_ratio(samples, "default"))
