"""The only pipeline from a configuration to a trial's result: build -> check -> measure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from tunebench.tuner.check import Oracle, check, consult_reference
from tunebench.tuner.compile.base import Build, Compiler
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compiled import CompiledReferenceError, compile_reference
from tunebench.tuner.device import Device
from tunebench.tuner.errors import DeviceLostError, LaunchError, UserError
from tunebench.tuner.kernel import Kernel, Mode, ModelFactory, Plan, TunableModel
from tunebench.tuner.measure import Call, clock_for, interleave, measure, speedup
from tunebench.tuner.problem import Problem
from tunebench.tuner.reference import Reference
from tunebench.tuner.result import Baseline, Comparison, TrialResult, TrialStatus
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
    """

    kernel: Kernel
    problem: Problem
    device: Device
    reference: torch.nn.Module
    model: TunableModel
    oracle: Oracle

    @classmethod
    def prepare(
        cls, kernel: Kernel, factory: ModelFactory, reference: Reference, mode: Mode, device: Device
    ) -> Subject:
        """Build both models on the device, in this mode, and ask the reference for its answers.

        Raises:
            UserError: the model cannot serve the reference's own inputs with a kernel, or takes them for another mode.
        """
        training = mode is Mode.TRAIN
        where = device.torch_device
        original = reference.make_model(0, where).train(training)
        module = reference.make_model(0, where, cast(Callable[..., torch.nn.Module], factory)).train(training)
        module.load_state_dict(original.state_dict())
        model = cast(TunableModel, module)
        if mode is Mode.FROZEN:
            model.freeze()
        oracle = consult_reference(reference, original, where, SEEDS)
        problem = model.problem(*oracle.cases[0].inputs)
        if problem is None:
            raise UserError(f"kernel '{kernel.name}' cannot serve its reference's inputs on {device.kind}")
        if len(kernel.modes) > 1 and problem.options.get("mode") != mode:
            raise UserError(
                f"kernel '{kernel.name}' in mode '{mode}' takes its inputs for the problem {problem}: "
                f"its `problem` must give the option mode={mode}"
            )
        return cls(kernel, problem, device, original, model, oracle)

    @property
    def footprint_bytes(self) -> int:
        """Memory that one call must touch."""
        return self.kernel.work(self.problem).bytes


class Evaluator(Protocol):
    """Turns configurations into results for one problem on one device, wherever that happens."""

    problem: Problem
    device: Device

    def evaluate(self, configuration: Configuration, build: Build, incumbent_ms: float | None) -> TrialResult:
        """One configuration's result; a variant that fails is a result as well."""

    def compare(self, finalists: Sequence[Finalist], default: Finalist | None) -> Comparison:
        """Time the finalists and the baselines interleaved; the fastest finalist is the best."""

    def close(self) -> None:
        """Let go of the device."""


class LocalEvaluator:
    """Evaluates in this process; a variant that crashes takes the process with it.

    Args:
        compiled: compare with the reference under torch.compile as well, which takes tens of seconds to compile.
    """

    def __init__(self, subject: Subject, compiler: Compiler, *, compiled: bool = False) -> None:
        self._compiled = compiled
        self.problem = subject.problem
        self.device = subject.device
        self._subject = subject
        self._compiler = compiler
        self._clock = clock_for(subject.device, subject.footprint_bytes)
        self._inputs = subject.oracle.cases[0].inputs

    def reference_seconds(self) -> float:
        """What one call of the reference takes, roughly: for deadlines."""
        started = time.perf_counter()
        with torch.no_grad():
            self._subject.reference(*self._inputs)
            self._synchronise()
        return time.perf_counter() - started

    def close(self) -> None:
        """Nothing to let go of: the tensors go with this object."""

    def evaluate(self, configuration: Configuration, build: Build, incumbent_ms: float | None) -> TrialResult:
        """One configuration's result; a variant that fails is a result as well.

        Raises:
            DeviceLostError: the variant left the device unusable for this process.
        """
        seconds = {"compile": build.seconds}
        verdict = measurement = None
        try:
            started = time.perf_counter()
            plan = self._plan(configuration, build)
            verdict = check(self._subject.model, plan, self._subject.oracle)
            self._synchronise()
            seconds["check"] = time.perf_counter() - started
            if not verdict.passed:
                status = TrialStatus.CORRECTNESS
                return TrialResult(configuration, status, build, verdict, message=verdict.reason, seconds=seconds)
            started = time.perf_counter()
            measurement, hopeless = measure(self._call(plan), self._clock, incumbent_ms)
            seconds["measure"] = time.perf_counter() - started
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
        compiled, missing = self._compiled_call()
        calls |= compiled | self._copy_call()
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
            missing=missing,
        )

    def _compiled_call(self) -> tuple[dict[str, Call], dict[Baseline, str]]:
        """The reference under torch.compile where that is wanted, or why it is missing."""
        if not self._compiled:
            return {}, {}
        try:
            compiled = compile_reference(self._subject.reference, self._inputs)
        except CompiledReferenceError as error:
            return {}, {Baseline.COMPILED: str(error)}
        return {Baseline.COMPILED: lambda: compiled(*self._inputs)}, {}

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
