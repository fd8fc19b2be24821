"""The only pipeline from a configuration to a trial's result: build -> check -> measure."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch

from tunebench.tuner.build import Build
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.cores import kept_to
from tunebench.tuner.errors import (
    ArgumentError,
    DeviceLostError,
    LaunchError,
    TunebenchError,
    UserError,
)
from tunebench.tuner.gate.battery import Depth, run_battery
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.launches import ShapeRecorder
from tunebench.tuner.gate.memory import synchronise
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.quick import QuickGate, pinned
from tunebench.tuner.gate.stage_log import StageLog
from tunebench.tuner.gate.stages.sanitized import sanitize
from tunebench.tuner.gate.values import Values
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Objective
from tunebench.tuner.result import (
    CONTROL,
    Baseline,
    Comparison,
    LaunchShape,
    Measurement,
    Stage,
    TrialResult,
    TrialStatus,
    Verdict,
)
from tunebench.tuner.study.account import Activity
from tunebench.tuner.study.history import PastTrial
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.timing.confirm import Standing, confirm, standing_of, tells
from tunebench.tuner.timing.energy import counter_of, energy_mj
from tunebench.tuner.timing.measure import Call, Control, clocks_for, copy_of, measure_steadily, pick_clock
from tunebench.tuner.timing.roofline import floor_ms
from tunebench.tuner.timing.statistics import Samples, control_ratio, medians_of, speedup
from tunebench.tuner.timing.torch_compile import CompiledReferenceError, compile_reference, end_compilers
from tunebench.tuner.users_code import UsersCodeError, told


class Finalist(NamedTuple):
    """A configuration with its build, ready to be timed again."""

    configuration: Configuration
    build: Build


@dataclass(frozen=True)
class Leaders:
    """A study's findings so far, as far as they matter to how the next configuration is evaluated.

    Attributes:
        incumbent: the best correct trial; others are timed by the clock that it was timed by.
        finalist_ms: whatever is faster would be a finalist and goes through the full battery; None for everything.
        seconds: that are left of the study's time; None where a variant has all that any has.
    """

    incumbent: PastTrial | None = None
    finalist_ms: float | None = None
    seconds: float | None = None


NOBODY = Leaders()


class LocalEvaluator:
    """Evaluates in this process; a variant that crashes takes the process with it.

    Args:
        driving: the cores that drive timings; the thread that times stays on them meanwhile.
        prepared: seconds that it took to prepare the subject.
    """

    def __init__(
        self,
        subject: Subject,
        compiler: Compiler,
        *,
        driving: Collection[int] = (),
        prepared: Mapping[Activity, float] | None = None,
    ) -> None:
        self.prepared = prepared or {}
        self._compiled: dict[Baseline, Call] = {}
        self._driving = driving
        self.problem = subject.problem
        self.device = subject.device
        self._subject = subject
        self._compiler = compiler
        self._clocks = clocks_for(subject.device, subject.work)
        self._control = Control(subject.device, self._clocks[-1])
        self._inputs = subject.oracle.cases[0].inputs
        self._floor_ms: float | None = None
        self._quick = QuickGate(
            Model(cast(torch.nn.Module, subject.model)), subject.oracle, Exemptions.of(subject.kernel)
        )

    def reference_seconds(self) -> float:
        """Return roughly how many seconds one call of the reference takes, for deadlines."""
        started = time.perf_counter()
        with torch.no_grad():
            self._subject.reference(*self._inputs)
            synchronise(self._subject.device.torch_device)
        return time.perf_counter() - started

    def kill(self) -> None:
        """It runs in this process, and cannot be ended."""

    def close(self) -> None:
        """Nothing to let go of: the tensors go with this object."""

    def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
        """Return one configuration's result; a variant that fails is a result as well.

        Raises:
            DeviceLostError: the variant left the device unusable for this process.
            UsersCodeError: the model's own code raised something, or gave a launch what its source does not declare.
        """
        seconds = {"compile": build.seconds}
        verdict = measurement = None
        self._make_room()
        try:
            started = time.perf_counter()
            plan = self._plan(configuration, build)
            prepare = pinned(self._subject.model, plan)
            with self._own_code():
                verdict = self._quick.check(prepare, StageLog())
            synchronise(self._subject.device.torch_device)
            seconds["check"] = time.perf_counter() - started
            if not verdict.passed:
                return _refused(configuration, build, verdict, seconds)
            started = time.perf_counter()
            call = self._call(plan)
            with self._own_code():
                with kept_to(self._driving):
                    measurement, hopeless = self._measure(call, leaders.incumbent)
                if not hopeless and self._subject.problem.objective is not Objective.TIME:
                    if (energy := self._energy_mj(call)) is None:
                        raise RuntimeError("NVML does not report the energy of its calls")
                    measurement = replace(measurement, energy_mj=energy)
                timed = Values.of(call())  # one more turn of the timed loop
                launches = self._launches(plan, build)
            verdict = self._above_floor(verdict, measurement)
            seconds["measure"] = time.perf_counter() - started
            if not verdict.passed:
                return _refused(configuration, build, verdict, seconds)
            started = time.perf_counter()
            verdict = self._quick.check_again(prepare, verdict, timed)
            leads = leaders.finalist_ms is None or measurement.median_ms < leaders.finalist_ms
            if verdict.passed and not hopeless and leads:
                verdict = self._prove(configuration, build, verdict)
            synchronise(self._subject.device.torch_device)
            seconds["check"] += time.perf_counter() - started
            if not verdict.passed:
                return _refused(configuration, build, verdict, seconds)
        except ArgumentError as error:
            raise UsersCodeError(told(error, "", self._subject.kernel.folder)) from error
        # torch reports errors of the device as RuntimeError (torch.AcceleratorError, OutOfMemoryError).
        except (LaunchError, RuntimeError) as error:
            self._require_alive(error)
            return TrialResult(configuration, TrialStatus.RUNTIME, build, message=str(error), seconds=seconds)
        finally:
            self._subject.model.pin(None)
        status = TrialStatus.PRUNED if hopeless else TrialStatus.CORRECT
        message = "hopelessly slower than the best so far" if hopeless else ""
        return TrialResult(configuration, status, build, verdict, measurement, message, seconds, launches=launches)

    def _make_room(self) -> None:
        """Let go of what torch has compiled where it leaves the gate less than half of the memory; `compile` takes it
        from Inductor's caches again."""
        device = self._subject.device.torch_device
        if not self._compiled or device.type != "cuda":
            return
        free, whole = torch.cuda.mem_get_info(device)
        if free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) < whole / 2:
            self._compiled = {}
            gc.collect()
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _own_code(self) -> Iterator[None]:
        """Where the model's own code runs: errors of the device stay what they are, of the code they name the place."""
        try:
            yield
        except (TunebenchError, RuntimeError) as error:
            if not isinstance(error, UserError | NotImplementedError | RecursionError):
                raise
            raise UsersCodeError(told(error, "the forward fails", self._subject.kernel.folder)) from error
        except Exception as error:
            raise UsersCodeError(told(error, "the forward fails", self._subject.kernel.folder)) from error

    def compare(
        self,
        finalists: Sequence[Finalist],
        default: Finalist | None,
        leader: Configuration,
        seconds: float | None = None,
    ) -> Comparison:
        """Time the finalists and the baselines interleaved, and name the winner, as `confirm.py` decides.

        Args:
            finalists: the simplest first, without the default.
            default: the kernel's default configuration, where it is correct.
            leader: the one of these that was the fastest in the search; it stays the best where the rounds leave open
                which is.
            seconds: of all rounds; None for `most_seconds()`.
        """
        candidates = {} if default is None else {Baseline.DEFAULT.value: self._plan(*default)}
        candidates |= {f"finalist {number}": self._plan(*finalist) for number, finalist in enumerate(finalists)}
        baselines = {Baseline.REFERENCE: self._reference_call()} | self._compiled | self._copy_call()
        calls: dict[str, Call] = {baseline.value: call for baseline, call in baselines.items()}
        calls |= {name: self._pinned_call(plan) for name, plan in candidates.items()}
        if default is None:
            pivot, twin = Baseline.REFERENCE, self._reference_call()
        else:
            pivot, twin = Baseline.DEFAULT, self._pinned_call(candidates[Baseline.DEFAULT])
        leading = next(name for name, plan in candidates.items() if plan.configuration == leader)

        def standing(samples: Samples) -> Standing:
            return standing_of(list(candidates), samples, pivot, leading)

        with torch.no_grad(), kept_to(self._driving):
            samples = confirm(
                calls,
                pivot,
                twin,
                pick_clock(self._clocks, list(calls.values())),
                self._control,
                seconds,
                is_decided=lambda samples: standing(samples).is_decided,
                leaving=lambda samples: standing(samples).out,
            )
        self._subject.model.pin(None)
        best = standing(samples).best
        objective = self._subject.problem.objective
        energies: Mapping[str, float] = {}
        if objective is not Objective.TIME:  # half a second each, which nobody else is to wait for
            energies = self._energies(calls)
            medians = medians_of(samples)
            best = min(candidates, key=lambda name: objective.cost(medians[name], energies.get(name)))
        kept: Samples = {"best": samples[best]} | {
            name: values for name, values in samples.items() if name in (*Baseline, CONTROL)
        }
        named = {"best": best} | {name: name for name in kept if name not in ("best", Baseline.COPY, CONTROL)}
        return Comparison(
            best=candidates[best].configuration,
            medians_ms=medians_of(kept),
            samples_ms=kept,
            speedups={name: speedup(samples[best], kept[name]) for name in Baseline if name in kept},
            control=control_ratio(samples, pivot),
            conditions=self._control.conditions(),
            work=self._subject.recorded_work,
            energies_mj={name: energies[one] for name, one in named.items() if one in energies},
        )

    def compile(self, seconds: float = math.inf) -> str:
        """Have torch compile the reference, which takes part in `compare` then; return why it does not, if so.

        Args:
            seconds: a worker that takes longer is ended, and another one goes on without.
        """
        del seconds
        if self._compiled:
            return ""
        try:
            compiled = compile_reference(self._subject.reference, self._inputs)
        except CompiledReferenceError as error:
            return str(error)
        finally:
            end_compilers()
        self._compiled = {Baseline.COMPILED: lambda: compiled(*self._inputs)}
        return ""

    def duel(
        self, first: Finalist | None, second: Finalist | None, *, opponent: LocalEvaluator | None = None
    ) -> Samples:
        """Rounds of two contenders, `first` and `second`, and a copy of the second; None is the reference.

        Args:
            opponent: whose the second is, another version of the kernel, on this one's inputs; None for this one's own.
        """
        other = opponent or self

        def call_of(side: Finalist | None, owner: LocalEvaluator) -> Call:
            return owner._reference_call() if side is None else owner._pinned_call(owner._plan(*side), self._inputs)

        calls = {"first": call_of(first, self), "second": call_of(second, other)}
        twin = call_of(second, other)
        with torch.no_grad():
            clock = pick_clock(self._clocks, [*calls.values(), twin])
            samples = confirm(calls, "second", twin, clock, self._control, is_decided=tells("first", "second"))
        for evaluator in {self, other}:
            evaluator._subject.model.pin(None)
        return samples

    def call_of(self, finalist: Finalist) -> Call:
        """Return the whole forward under a configuration, without its gradients."""
        return self._call(self._plan(*finalist))

    def prove(self, finalist: Finalist) -> Stage | None:
        """Put a configuration that was right through the full battery; return the stage that refuses it.

        Raises:
            DeviceLostError: it left the device unusable for this process.
        """
        self._make_room()
        try:
            prepare = pinned(self._subject.model, self._plan(*finalist))
            with self._own_code():
                verdict = self._quick.check(prepare, StageLog())
                if verdict.passed:
                    verdict = self._prove(*finalist, verdict)
        except (LaunchError, RuntimeError, UsersCodeError) as error:
            self._require_alive(error)
            return Stage("run", False, 0.0, str(error))
        finally:
            self._subject.model.pin(None)
        return next((stage for stage in verdict.stages if not stage.passed), None)

    def sanitize(self, finalist: Finalist, seconds: float = math.inf) -> Stage:
        """Run a finalist's launches under compute-sanitizer, where it is installed.

        Raises:
            OutOfTimeError: it has not ended within so many seconds.
        """
        return sanitize(Harness(self._subject.answers, self._contender(*finalist)), seconds)

    def _prove(self, configuration: Configuration, build: Build, verdict: Verdict) -> Verdict:
        """The same verdict with the stages of the full battery."""
        log = StageLog(stages=verdict.stages, errors=verdict.errors)
        run_battery(self._subject.answers, self._contender(configuration, build), log, Depth.FINALIST)
        return log.verdict(verdict.tolerance)

    def _contender(self, configuration: Configuration, build: Build) -> KernelContender:
        subject = self._subject
        return KernelContender(
            subject.kernel,
            subject.factory,
            configuration,
            self._compiler,
            build,
            builds_more=False,
            accuracy=subject.problem.accuracy,
        )

    def _energies(self, calls: Mapping[str, Call]) -> dict[str, float]:
        """The energy of one call of each contender, millijoules; those that can be measured."""
        with torch.no_grad():
            measured = {name: self._energy_mj(call) for name, call in calls.items() if name != Baseline.COPY}
        self._subject.model.pin(None)
        return {name: energy for name, energy in measured.items() if energy is not None}

    def _energy_mj(self, call: Call) -> float | None:
        if (counter := counter_of(self._subject.device)) is None:
            return None
        return energy_mj(call, counter, lambda: synchronise(self._subject.device.torch_device))

    def _launches(self, plan: Plan, build: Build) -> tuple[LaunchShape, ...]:
        """The different launches of one forward."""
        recorder = ShapeRecorder(plan.module, build)
        self._call(replace(plan, module=recorder))()
        return tuple(recorder.shapes)

    def _measure(self, call: Call, incumbent: PastTrial | None) -> tuple[Measurement, bool]:
        """Time a call by the incumbent's clock, so that the two can be ranked."""
        if incumbent is None:
            return measure_steadily(call, pick_clock(self._clocks, [call]), self._control)
        clock = next((one for one in self._clocks if one.name == incumbent.clock), self._clocks[-1])
        return measure_steadily(call, clock, self._control, incumbent.median_ms)

    def _above_floor(self, verdict: Verdict, measurement: Measurement) -> Verdict:
        """The verdict, refused where the time is less than the memory needs: such a call has not done the work."""
        started = time.perf_counter()
        if self._floor_ms is None:
            self._floor_ms = floor_ms(self._subject.work, self._subject.device, self._clocks[-1])
        if measurement.median_ms >= self._floor_ms:
            return verdict
        reason = (
            f"timed at {measurement.median_ms:.4g} ms, but moving {self._subject.work.bytes:,} bytes takes "
            f"{self._floor_ms:.4g} ms at least: it does not do the work in every call"
        )
        stage = Stage("roofline", False, time.perf_counter() - started, reason)
        return verdict.refused_by(stage)

    def _reference_call(self) -> Call:
        return lambda: self._subject.reference(*self._inputs)

    def _copy_call(self) -> dict[Baseline, Call]:
        """A copy of as many bytes as the problem must move; nothing where memory has no room for it."""
        copy = copy_of(self._subject.work.bytes, self._subject.device)
        return {} if copy is None else {Baseline.COPY: copy}

    def _plan(self, configuration: Configuration, build: Build) -> Plan:
        subject = self._subject
        module = self._compiler.load(build, subject.device.index)
        return Plan(subject.kernel, configuration, subject.problem, subject.device, module)

    def _call(self, plan: Plan) -> Call:
        """The whole forward under a plan, pinned once."""
        model, inputs = self._subject.model, self._inputs
        model.pin(plan)

        def call() -> object:
            with torch.no_grad():
                return model(*inputs)

        return call

    def _pinned_call(self, plan: Plan, inputs: Sequence[object] | None = None) -> Call:
        """The whole forward under a plan that is pinned anew each time, for calls that take turns."""
        model, inputs = self._subject.model, self._inputs if inputs is None else inputs

        def call() -> object:
            model.pin(plan)
            return model(*inputs)

        return call

    def _require_alive(self, error: Exception) -> None:
        """An error that the device does not recover from (an illegal address, say) ends every later call as well."""
        try:
            synchronise(self._subject.device.torch_device)
        except RuntimeError:
            raise DeviceLostError(str(error)) from error


def _refused(configuration: Configuration, build: Build, verdict: Verdict, seconds: Mapping[str, float]) -> TrialResult:
    status = TrialStatus.CORRECTNESS
    return TrialResult(configuration, status, build, verdict, message=verdict.reason, seconds=seconds)
