"""The only pipeline from a configuration to a trial's result: build -> check -> measure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from tunebench.tuner.compile.base import Build, Compiler
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.device import Device
from tunebench.tuner.errors import DeviceLostError, LaunchError, UserError
from tunebench.tuner.gate.battery import FINAL_STEPS, Depth, run_battery
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.oracle import Oracle, consult_reference
from tunebench.tuner.gate.quick import Licence, QuickGate, pinned
from tunebench.tuner.gate.record import Record
from tunebench.tuner.gate.rig import Answers
from tunebench.tuner.kernel import Kernel, ModelFactory, Plan, TunableModel
from tunebench.tuner.measure import Call, clock_for, interleave, measure, speedup
from tunebench.tuner.problem import Problem
from tunebench.tuner.reference import Reference
from tunebench.tuner.result import Baseline, Comparison, Stage, TrialResult, TrialStatus, Verdict
from tunebench.tuner.space import Configuration

SEEDS = (1, 2)
"""Seeds of the inputs that every variant is checked on."""

COMPARISON_ROUNDS = 40
COMPARISON_SECONDS = 5.0


Finalist = tuple[Configuration, Build]


class BuildQueue:
    """Builds variants on threads ahead of the device; configurations that share a variant share its build."""

    def __init__(self, compiler: Compiler, cache: BuildCache, workers: int) -> None:
        self._compiler = compiler
        self._cache = cache
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="compile")
        self._futures: dict[str, Future[Build]] = {}

    def submit(self, kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> Future[Build]:
        """The build of a configuration, begun now if it was not already."""
        variant = kernel.variant(configuration, problem, device.architecture)
        if variant.digest not in self._futures:
            self._futures[variant.digest] = self._pool.submit(self._cache.build, self._compiler, variant)
        return self._futures[variant.digest]

    def close(self) -> None:
        """Drop what has not begun; wait for what has."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Subject:
    """A kernel's model and its reference on one device, for one problem, with the same weights.

    Attributes:
        reference: the reference in the problem's mode, ready to call.
        model: the `ModelNew` that carries the reference's weights.
        oracle: the reference's answers.
        answers: the reference for whatever else the gate asks.
    """

    kernel: Kernel
    problem: Problem
    device: Device
    reference: torch.nn.Module
    factory: ModelFactory
    model: TunableModel
    oracle: Oracle
    answers: Answers

    @classmethod
    def prepare(cls, kernel: Kernel, factory: ModelFactory, reference: Reference, mode: str, device: Device) -> Subject:
        """Build both models on the device and ask the reference for its answers.

        Args:
            mode: `eval` or `train`.

        Raises:
            UserError: the model cannot serve the reference's own inputs with a kernel.
        """
        training = mode == "train"
        where = device.torch_device
        original = reference.make_model(0, where).train(training)
        module = reference.make_model(0, where, cast(Callable[..., torch.nn.Module], factory)).train(training)
        module.load_state_dict(original.state_dict())
        model = cast(TunableModel, module)
        oracle = consult_reference(reference, original, where, SEEDS)
        problem = model.problem(*oracle.cases[0].inputs)
        if problem is None:
            raise UserError(f"kernel '{kernel.name}' cannot serve its reference's inputs on {device.kind}")
        answers = Answers(reference, where, training=training)
        return cls(kernel, problem, device, original, factory, model, oracle, answers)

    @property
    def footprint_bytes(self) -> int:
        """Memory that one call must touch."""
        return self.kernel.work(self.problem).bytes


class Evaluator(Protocol):
    """Turns configurations into results for one problem on one device, wherever that happens."""

    problem: Problem
    device: Device

    def evaluate(
        self, configuration: Configuration, build: Build, incumbent_ms: float | None, finalist_ms: float | None
    ) -> TrialResult:
        """One configuration's result; a variant that fails is a result as well.

        Args:
            incumbent_ms: median of the best so far; None before there is one.
            finalist_ms: whatever is faster would be a finalist and goes through the full battery; None for everything.
        """

    def sanitize(self, finalist: Finalist) -> Stage:
        """A finalist's launches under compute-sanitizer, where it is installed."""

    def compare(self, finalists: Sequence[Finalist], default: Finalist | None) -> Comparison:
        """Time the finalists and the baselines interleaved; the fastest finalist is the best."""

    def close(self) -> None:
        """Let go of the device."""


class LocalEvaluator:
    """Evaluates in this process; a variant that crashes takes the process with it."""

    def __init__(self, subject: Subject, compiler: Compiler) -> None:
        self.problem = subject.problem
        self.device = subject.device
        self._subject = subject
        self._compiler = compiler
        self._clock = clock_for(subject.device, subject.footprint_bytes)
        self._inputs = subject.oracle.cases[0].inputs
        self._quick = QuickGate(cast(torch.nn.Module, subject.model), subject.oracle, Licence.of(subject.kernel))

    def reference_seconds(self) -> float:
        """What one call of the reference takes, roughly: for deadlines."""
        started = time.perf_counter()
        with torch.no_grad():
            self._subject.reference(*self._inputs)
            self._synchronise()
        return time.perf_counter() - started

    def close(self) -> None:
        """Nothing to let go of: the tensors go with this object."""

    def evaluate(
        self, configuration: Configuration, build: Build, incumbent_ms: float | None, finalist_ms: float | None
    ) -> TrialResult:
        """One configuration's result; a variant that fails is a result as well. See `Evaluator.evaluate`.

        Raises:
            DeviceLostError: the variant left the device unusable for this process.
        """
        seconds = {"compile": build.seconds}
        verdict = measurement = None
        try:
            started = time.perf_counter()
            plan = self._plan(configuration, build)
            prepare = pinned(self._subject.model, plan)
            verdict = self._quick.check(prepare, Record())
            self._synchronise()
            seconds["check"] = time.perf_counter() - started
            if not verdict.passed:
                return _refused(configuration, build, verdict, seconds)
            started = time.perf_counter()
            call = self._call(plan)
            measurement, hopeless = measure(call, self._clock, incumbent_ms)
            timed = call()  # one more turn of the timed loop
            seconds["measure"] = time.perf_counter() - started
            started = time.perf_counter()
            verdict = self._quick.check_again(prepare, verdict, timed)
            if verdict.passed and not hopeless and (finalist_ms is None or measurement.median_ms < finalist_ms):
                verdict = self._prove(configuration, build, verdict)
            self._synchronise()
            seconds["check"] += time.perf_counter() - started
            if not verdict.passed:
                return _refused(configuration, build, verdict, seconds)
        # torch reports errors of the device as RuntimeError (torch.AcceleratorError, OutOfMemoryError).
        except (LaunchError, RuntimeError) as error:
            self._require_alive(error)
            return TrialResult(configuration, TrialStatus.RUNTIME, build, message=str(error), seconds=seconds)
        finally:
            self._subject.model.pin(None)
        status = TrialStatus.PRUNED if hopeless else TrialStatus.CORRECT
        message = "hopelessly slower than the best so far" if hopeless else ""
        return TrialResult(configuration, status, build, verdict, measurement, message, seconds)

    def compare(self, finalists: Sequence[Finalist], default: Finalist | None) -> Comparison:
        """Time the finalists and the baselines interleaved; the fastest finalist is the best.

        Where none of them is faster than the default configuration in these rounds, the default is the best: the
        screening's lowest median may have been luck.
        """
        plans = {f"finalist {number}": self._plan(*finalist) for number, finalist in enumerate(finalists)}
        calls: dict[str, Call] = {Baseline.REFERENCE: lambda: self._subject.reference(*self._inputs)}
        candidates = dict(plans)
        if default is not None:
            candidates[Baseline.DEFAULT] = self._plan(*default)
            calls[Baseline.DEFAULT] = self._pinned_call(candidates[Baseline.DEFAULT])
        calls |= self._copy_call()
        baselines = [Baseline(name) for name in calls]
        calls |= {name: self._pinned_call(plan) for name, plan in plans.items()}
        with torch.no_grad():
            samples = interleave(calls, self._clock, COMPARISON_ROUNDS, COMPARISON_SECONDS)
        self._subject.model.pin(None)
        measure_of = Baseline.REFERENCE if default is None else Baseline.DEFAULT
        # Ties go to the default, which stands last: `max` keeps the first of equals, hence the reversal.
        winner = max(reversed(candidates), key=lambda name: speedup(samples[name], samples[measure_of]).value)
        kept = {"best": samples[winner]} | {name.value: samples[name] for name in baselines}
        return Comparison(
            best=candidates[winner].configuration,
            medians_ms={name: statistics.median(values) for name, values in kept.items()},
            samples_ms=kept,
            speedups={name: speedup(samples[winner], samples[name]) for name in baselines},
        )

    def sanitize(self, finalist: Finalist) -> Stage:
        """A finalist's launches under compute-sanitizer, where it is installed."""
        record = Record()
        contender = self._contender(*finalist)
        run_battery(self._subject.answers, contender, record, Depth.EVERYTHING, steps=FINAL_STEPS)
        (stage,) = record.verdict(self._subject.oracle.tolerance).stages
        return stage

    def _prove(self, configuration: Configuration, build: Build, verdict: Verdict) -> Verdict:
        """The same verdict with the stages of the full battery."""
        record = Record(stages=verdict.stages, errors=verdict.errors)
        run_battery(self._subject.answers, self._contender(configuration, build), record, Depth.FINALIST)
        return record.verdict(verdict.tolerance)

    def _contender(self, configuration: Configuration, build: Build) -> KernelContender:
        subject = self._subject
        return KernelContender(subject.kernel, subject.factory, configuration, self._compiler, build, builds_more=False)

    def _copy_call(self) -> dict[str, Call]:
        """A copy of as many bytes as the problem must move; nothing where memory has no room for it."""
        where = self._subject.device.torch_device
        try:
            source = torch.ones(max(1, self._subject.footprint_bytes // 2), dtype=torch.uint8, device=where)
            target = torch.empty_like(source)
        except torch.OutOfMemoryError:
            return {}
        return {Baseline.COPY: lambda: target.copy_(source)}

    def _plan(self, configuration: Configuration, build: Build) -> Plan:
        subject = self._subject
        module = self._compiler.load(build, subject.device.index)
        return Plan(configuration, subject.problem, subject.device, module)

    def _call(self, plan: Plan) -> Call:
        """The whole forward under a plan, pinned once."""
        model, inputs = self._subject.model, self._inputs
        model.pin(plan)

        def call() -> object:
            with torch.no_grad():
                return model(*inputs)

        return call

    def _pinned_call(self, plan: Plan) -> Call:
        """The whole forward under a plan that is pinned anew each time, for calls that take turns."""
        model, inputs = self._subject.model, self._inputs

        def call() -> object:
            model.pin(plan)
            return model(*inputs)

        return call

    def _require_alive(self, error: Exception) -> None:
        """An error that the device does not recover from (an illegal address, say) ends every later call as well."""
        try:
            self._synchronise()
        except RuntimeError:
            raise DeviceLostError(str(error)) from error

    def _synchronise(self) -> None:
        if self._subject.device.torch_device.type == "cuda":
            torch.cuda.synchronize(self._subject.device.index)


def _refused(configuration: Configuration, build: Build, verdict: Verdict, seconds: Mapping[str, float]) -> TrialResult:
    status = TrialStatus.CORRECTNESS
    return TrialResult(configuration, status, build, verdict, message=verdict.reason, seconds=seconds)
