"""Tuned models against eager, torch.compile and the hand-picked default, timed in the same rounds; and the ceilings.

Every case runs in a process of its own: one that fails, crashes or hangs costs no other its result.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, cast

import torch

from tunebench.kernels.runtime.policy import set_accuracy, set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.selection import Tier
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.request.measure import BenchRequest
from tunebench.studies.tuning.targets import find_target
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.environment import Environment, current_environment
from tunebench.tuner.errors import CompileError, TunebenchError, UnknownNameError, UserError
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.gate.oracle import Oracle
from tunebench.tuner.gate.tolerance import REFERENCE_MULTIPLE
from tunebench.tuner.gate.values import Values
from tunebench.tuner.isolation import run_isolated
from tunebench.tuner.kernel import Kernel, Mode, Plan, prepare_model
from tunebench.tuner.problem import Accuracy, Problem, Work
from tunebench.tuner.reference import Reference
from tunebench.tuner.result import CONTROL, Baseline, CacheRegime, ErrorFigures, Ratio
from tunebench.tuner.settings import Setting, apply_settings, described, require_settings, under
from tunebench.tuner.study.account import Account, Activity
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.timing.confirm import confirm
from tunebench.tuner.timing.measure import Call, Control, clocks_for, copy_of, pick_clock
from tunebench.tuner.timing.statistics import Samples, median_interval, speedup
from tunebench.tuner.timing.torch_compile import CompiledReferenceError, compile_reference, end_compilers

TUNED = "tuned"
"""The contender that everything else is a baseline of."""

COMPILED_DEFAULT = "compiled_default"
"""torch.compile in its default mode; `Baseline.COMPILED` is max-autotune."""

COMPILE_MODES: Mapping[str, str] = {COMPILED_DEFAULT: "default", Baseline.COMPILED: "max-autotune"}
"""The baselines of torch.compile, each with its mode."""

CASE_SECONDS = 1800.0
"""The longest that one case may take; max-autotune compiles for minutes."""

_CEILING_SAMPLES = 11
_GEMM = {DeviceKind.CUDA: 8192, DeviceKind.CPU: 1024}
_STREAM_BYTES = {DeviceKind.CUDA: 1 << 30, DeviceKind.CPU: 1 << 28}


@dataclass(frozen=True)
class BenchCase:
    """One kernel in one mode at one size.

    Attributes:
        kernel: a shipped kernel's name, or a kernel folder's path.
        sizes: constants of its reference to change.
        dtype: what models and inputs are converted to; None leaves them as the reference's file makes them.
        configuration: tunables to set beside the default's, in place of what `ModelNew` chooses for itself.
        compiled: which of `COMPILE_MODES` are baselines.
        seconds: of timing, not counting compilation and checks.
        accuracy: how wrong the tuned model may be.
        settings: of PyTorch's, in force while everything is timed.
    """

    kernel: str
    mode: Mode
    sizes: Mapping[str, int | float] = field(default_factory=dict)
    dtype: str | None = None
    device: str | None = None
    configuration: Mapping[str, Value] | None = None
    compiled: Collection[str] = tuple(COMPILE_MODES)
    seconds: float = 5.0
    accuracy: Accuracy = Accuracy.TOLERANCE
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = "".join(f" {name}={size}" for name, size in self.sizes.items())
        accuracy = "" if self.accuracy is Accuracy.TOLERANCE else f" accuracy={self.accuracy}"
        settings = f" {described(self.settings)}" if self.settings else ""
        return f"{self.kernel} {self.mode}{sizes}{f' {self.dtype}' if self.dtype else ''}{accuracy}{settings}"


@dataclass(frozen=True)
class Ceilings:
    """The device's best rates, measured at the time.

    Attributes:
        copy_gbs, read_gbs: memory traffic of a copy (read and written) and of a sum, GB/s.
        gemm_tflops: arithmetic rate of a large square matrix product, by the arithmetic it uses.
    """

    copy_gbs: float
    read_gbs: float
    gemm_tflops: Mapping[str, float]

    def floor_ms(self, work: Work, *, in_cache: bool) -> tuple[float, str]:
        """The least time that the device's best rates allow for a problem's work, and which of them it is.

        Args:
            in_cache: memory's rate does not bind what stays in the caches.
        """
        memory = ("read", self.read_gbs) if self.read_gbs > self.copy_gbs else ("copy", self.copy_gbs)
        arithmetic = max(self.gemm_tflops.items(), key=lambda rate: rate[1])
        floors = [(work.operations / arithmetic[1] / 1e9, f"{arithmetic[0]} products")]
        if not in_cache:
            floors.append((work.bytes / memory[1] / 1e6, f"{memory[0]} rate"))
        return max(floors)


@dataclass(frozen=True)
class Timing:
    """A contender's median with its 95 % interval, milliseconds."""

    median_ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True)
class Result:
    """The result of a case.

    Attributes:
        timings: by contender: `tuned` and the baselines.
        speedups: of the tuned model over each baseline, by `Baseline` or `COMPILED_DEFAULT`; over `copy` it is the
            share of the copy rate.
        errors: against float64 by contender, the worst of all inputs tried.
        right: whether the tuned model's error is within the gate's bound; the reference, where it serves, is right.
        tier: where the configuration came from; `given` where the caller named it.
        reason: for people: the trial it comes from, or why there is nothing better.
        floor_ms, bound: the least time that the device's best rates allow, and by which of them; None without ceilings.
        wrong: the baselines whose own error is beyond the gate's bound.
        spent: seconds by phase, to the end of the rounds.
        notes: baselines that are missing, and why, and those that are wrong.
    """

    kernel: str
    problem: Problem
    timings: Mapping[str, Timing]
    speedups: Mapping[str, Ratio]
    errors: Mapping[str, ErrorFigures]
    right: bool
    tier: str
    configuration: Configuration | None
    reason: str
    floor_ms: float | None
    bound: str
    wrong: tuple[str, ...]
    spent: Mapping[Activity, float]
    notes: tuple[str, ...]

    @property
    def share(self) -> float | None:
        """The share of the roofline: the least possible time over the tuned median."""
        return self.floor_ms / self.timings[TUNED].median_ms if self.floor_ms else None


@dataclass(frozen=True)
class Failure:
    """A case that failed, with the reason."""

    case: BenchCase
    message: str


@dataclass(frozen=True)
class Bench:
    """A whole run.

    Attributes:
        ceilings: None where they could not be measured.
    """

    device: Device
    environment: Environment
    ceilings: Ceilings | None
    results: tuple[Result, ...]
    failures: tuple[Failure, ...]


def cases_of(targets: Sequence[str], asked: BenchRequest) -> list[BenchCase]:
    """The cases of kernels' names, study files, kernel folders and trials' numbers, in order.

    A trial is its own configuration at its own problem, where nothing else is asked for.

    A size goes to every kernel whose reference has a constant of that name; so does a batch, whose constant is
    `batch_size`, or the first where there is none of that name.

    Raises:
        UserError: a target, mode, size or dtype that none of the targets has.
    """
    start_forkserver([__name__])
    cases: list[BenchCase] = []
    known: set[str] = set()
    for target in targets:
        found = find_target(target, asked.database)
        request = found.request
        kernel = load_model(request.kernel).kernel
        legal = kernel.reference(request.sizes).sizes
        known |= set(legal)
        own = {name: size for name, size in asked.sizes.items() if name in legal}
        batch = "batch_size" if "batch_size" in legal else next(iter(legal), "batch_size")
        configuration = asked.configuration or dict(found.configuration) or None
        settings = request.settings if asked.settings is None else asked.settings
        for mode in _modes(kernel, asked.modes or request.modes, lenient=len(targets) > 1):
            batches = [{batch: size} for size in asked.batches] or [{}]
            for sizes, accuracy in itertools.product(batches, asked.accuracies or (request.accuracy,)):
                merged = {**request.sizes, **own, **sizes}
                dtype = request.dtype if asked.dtype is None else asked.dtype
                kernel.reference(merged, dtype)  # refuses what it has not before anything runs
                chosen = request.device if asked.device is None else asked.device
                if settings:
                    require_settings(settings, find_device(chosen).torch_device.type)
                cases.append(
                    BenchCase(
                        kernel=request.kernel,
                        mode=mode,
                        sizes=merged,
                        dtype=dtype,
                        device=chosen,
                        configuration=configuration,
                        compiled=tuple(COMPILE_MODES) if asked.compiled else (),
                        seconds=asked.seconds,
                        accuracy=Accuracy.under(settings or {}, accuracy),
                        settings=settings or {},
                    )
                )
    if unknown := [name for name in asked.sizes if name not in known]:
        raise UnknownNameError("size", unknown[0], known)
    if not cases:
        raise UserError(f"none of the kernels has mode {' or '.join(asked.modes)}")
    if asked.configuration is not None:
        if len({case.kernel for case in cases}) > 1:
            raise UserError("a configuration belongs to one kernel: name one kernel beside --config")
        load_model(cases[0].kernel).kernel.space.fix(asked.configuration)  # refuses what is no value of it
    return cases


def _modes(kernel: Kernel, asked: Sequence[str] | None, *, lenient: bool) -> Sequence[Mode]:
    """Return the modes that are asked for, else all; `lenient` leaves out those that the kernel does not have."""
    if not asked:
        return kernel.modes
    return kernel.modes_named([mode for mode in asked if mode in kernel.modes] if lenient else asked)


def bench(cases: Sequence[BenchCase], begin: Callable[[str], None] = lambda _: None) -> Bench:
    """Measure the ceilings, then every case, each in a process of its own.

    Args:
        begin: told what is about to be measured.
    """
    device = find_device(cases[0].device)
    start_forkserver([__name__])
    ceilings: Ceilings | None = None
    results: list[Result] = []
    failures: list[Failure] = []
    with alone_on(device, "tunebench bench"):
        begin("ceilings of the device")
        try:
            ceilings = run_isolated(CASE_SECONDS, measure_ceilings, cases[0].device)
        except TunebenchError as error:
            begin(f"no ceilings: {error}")
        for case in cases:
            begin(str(case))
            try:
                results.append(run_isolated(CASE_SECONDS, measure_case, case, ceilings))
            except TunebenchError as error:
                failures.append(Failure(case, str(error)))
                begin(f"{case}: failed: {error}")
    environment = current_environment(device, compiler_for(device).version())
    return Bench(device, environment, ceilings, tuple(results), tuple(failures))


# What follows runs in a case's own process.


def measure_ceilings(name: str | None) -> Ceilings:
    """Copy, read and matrix-product rates of a device: medians of a few calls.

    Raises:
        UserError: the device is not here.
    """
    device = find_device(name)
    where = device.torch_device
    size = min(_STREAM_BYTES[device.kind], device.memory_bytes // 16)
    # Nothing here needs caches flushed: it is far larger, or meant to be in them.
    clock = clocks_for(device, Work(bytes=1 << 62, operations=1 << 62))[-1]

    def rate(amount: float, call: Call) -> float:
        clock.warm_up(call)
        return amount / statistics.median(clock.sample([call] * _CEILING_SAMPLES))

    source = torch.ones(size // 4, device=where)
    target = torch.empty_like(source)
    copy = rate(2 * size / 1e6, lambda: target.copy_(source))
    read = rate(size / 1e6, source.sum)
    edge = _GEMM[device.kind]
    products = 2.0 * edge**3 / 1e9
    one = torch.rand(edge, edge, device=where)
    rates = {"fp32": rate(products, lambda: one @ one)}
    if device.kind is DeviceKind.CUDA:
        with under({Setting.MATMUL: "tf32"}, where.type):
            rates["TF32"] = rate(products, lambda: one @ one)
        half = one.half()
        rates["fp16"] = rate(products, lambda: half @ half)
    return Ceilings(copy, read, rates)


def measure_case(case: BenchCase, ceilings: Ceilings | None) -> Result:
    """Check and time one case.

    Raises:
        TunebenchError: the case is not legal, or its model cannot serve the reference's inputs.
    """
    account = Account()
    set_policy(wait=True)  # what is timed is the kernel, whenever it was built
    set_accuracy(case.accuracy)
    factory = load_model(case.kernel)
    kernel, device = factory.kernel, find_device(case.device)
    apply_settings(case.settings, device.torch_device.type)
    reference = kernel.reference(case.sizes, case.dtype)
    with account.phase(Activity.REFERENCE):
        subject = Subject.prepare(kernel, factory, reference, case.mode, device, case.accuracy)
    notes: list[str] = []
    models: dict[str, Callable[..., Any]] = {Baseline.REFERENCE: subject.reference}
    if case.compiled:
        with account.phase(Activity.COMPILING):
            inputs = subject.oracle.cases[0].inputs
            for name in case.compiled:
                try:
                    models[name] = compile_reference(subject.reference, inputs, COMPILE_MODES[name])
                except CompiledReferenceError as error:
                    notes.append(f"{COMPILE_MODES[name]}: {error}")
            end_compilers()
    tuned = cast(TunedModule, subject.model)
    share_weights(tuned, subject.reference)
    given = None
    with account.phase(Activity.COMPILER):
        try:
            models[Baseline.DEFAULT] = _default_model(subject, factory, reference, case.mode)
        except CompileError as error:
            notes.append(f"default configuration: {error}")
        if case.configuration is not None:
            given = kernel.space.choose(case.configuration, subject.problem, subject.device)
            tuned.pin(_plan(subject, given))
    models[TUNED] = tuned

    with torch.no_grad(), account.phase(Activity.QUICK):
        errors = {name: _errors(model, subject.oracle) for name, model in models.items() if name != Baseline.REFERENCE}
        choice = _choice_of(tuned, subject.problem, given)
        # Where a process permits TF32 the reference's own operations are further off than eager in float32.
        right = choice[0] == Tier.REFERENCE or _is_right(errors[TUNED], subject.oracle)
        wrong = [name for name, found in errors.items() if name != TUNED and not _is_right(found, subject.oracle)]
        for name in wrong:
            largest = _worst(errors[name]).max_relative
            notes.append(f"{name}: its error, {largest:.1e} of the output's size, is beyond the gate's bound")
        with account.phase(Activity.ROUNDS):
            samples = _samples(subject, models, case.seconds)
    work = kernel.work(subject.problem)
    floor: tuple[float | None, str] = (None, "")
    if ceilings is not None:
        warm = clocks_for(device, work)[-1].regime is CacheRegime.WARM
        floor = ceilings.floor_ms(work, in_cache=warm and work.bytes <= device.l2_bytes)
    return Result(
        kernel=kernel.name,
        problem=subject.problem,
        timings={name: Timing(*median_interval(values)) for name, values in samples.items() if name != CONTROL},
        speedups={name: speedup(samples[TUNED], samples[name]) for name in samples if name not in (TUNED, CONTROL)},
        errors={name: _worst(by_case) for name, by_case in errors.items()},
        right=right,
        tier=choice[0],
        configuration=choice[1],
        reason=choice[2],
        floor_ms=floor[0],
        bound=floor[1],
        wrong=tuple(wrong),
        spent=account.seconds,
        notes=tuple(notes),
    )


def _samples(subject: Subject, models: Mapping[str, Callable[..., Any]], seconds: float) -> Samples:
    inputs = subject.oracle.cases[0].inputs
    calls: dict[str, Call] = {name: _call(model, inputs) for name, model in models.items()}
    work = subject.kernel.work(subject.problem)
    if (copy := copy_of(work.bytes, subject.device)) is not None:
        calls[Baseline.COPY] = copy
    twin = _call(models[Baseline.REFERENCE], inputs)
    clock = pick_clock(clocks_for(subject.device, work), [*calls.values(), twin])
    control = Control(subject.device, clock)
    return confirm(calls, Baseline.REFERENCE, twin, clock, control, seconds)


def _call(model: Callable[..., Any], inputs: tuple[Any, ...]) -> Call:
    return lambda: model(*inputs)


def share_weights(model: torch.nn.Module, reference: torch.nn.Module) -> None:
    """Have a model read the reference's own parameters.

    Another copy lies elsewhere in memory, which decides a few per cent of a call of 10 µs.
    """
    model.load_state_dict(dict(reference.named_parameters()), strict=False, assign=True)


def _default_model(subject: Subject, factory: type[TunedModule], reference: Reference, mode: Mode) -> TunedModule:
    """Another model with the same weights, pinned to the hand-picked default."""
    made = prepare_model(reference, mode, subject.device.torch_device, factory, subject.oracle.state)
    model = cast(TunedModule, made)
    share_weights(model, subject.reference)
    space = subject.kernel.space.enumerate(subject.problem, subject.device)
    model.pin(_plan(subject, space[space.default]))
    return model


def _plan(subject: Subject, configuration: Configuration) -> Plan:
    kernel, device = subject.kernel, subject.device
    return build_plan(kernel, configuration, subject.problem, device, compiler_for(device, None, kernel.languages))


def _choice_of(
    tuned: TunedModule, problem: Problem, given: Configuration | None
) -> tuple[str, Configuration | None, str]:
    if given is not None:
        return "given", given, "named by the caller"
    choice = next(choice for (one, _), choice in tuned.choices.items() if one == problem)
    return choice.tier.value, choice.configuration, choice.reason


_Errors = Mapping[str, Mapping[str, ErrorFigures]]
"""A model's, by case and path of the output."""


def _errors(model: Callable[..., Any], oracle: Oracle) -> _Errors:
    found: dict[str, dict[str, ErrorFigures]] = {}
    for case in oracle.cases:
        tensors = Values.of(model(*case.inputs)).tensors
        found[case.name] = {path: expected.errors_of(tensors[path]) for path, expected in case.output.items()}
    return found


def _worst(errors: _Errors) -> ErrorFigures:
    """The figures with the largest multiple of the reference's own error."""
    figures = (one for by_path in errors.values() for one in by_path.values())
    return max(figures, key=attrgetter("multiple_of_reference"))


def _is_right(errors: _Errors, oracle: Oracle) -> bool:
    """Whether these errors pass the gate."""
    own = _worst(errors)
    if own.max_relative > max(oracle.tolerance, REFERENCE_MULTIPLE * own.reference_max_relative):
        return False
    return all(one.holds for one in oracle.exactness(errors))
