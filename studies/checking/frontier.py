"""The frontier of time and error: x · weightᵀ of one size by every product at hand.

Configurations of the block `Linear` that round alike are a class. Of each class some are tried as studies try them:
built, put through the quick battery, timed. The fastest of each and torch's own products are then timed, and asked for
their errors, in one process and on the same inputs.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from tunebench.kernels.runtime.shipped import shipped_studies
from tunebench.studies.checking.bench import CASE_SECONDS
from tunebench.studies.request.measure import FrontierRequest
from tunebench.studies.tuning import PRELOAD
from tunebench.studies.tuning.executors import make_executor
from tunebench.studies.tuning.for_problem import problem_of
from tunebench.studies.tuning.resolved import Resolved, resolve
from tunebench.studies.tuning.study_file import make_request
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.environment import Environment, current_environment
from tunebench.tuner.errors import CompileError, LaunchError, UserError
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.gate.accuracy import Wrong
from tunebench.tuner.isolation import run_isolated
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.result import Measurement, TrialResult, TrialStatus
from tunebench.tuner.search.warm_start import choose_warm_starts
from tunebench.tuner.settings import Setting, under
from tunebench.tuner.space import ValidSpace
from tunebench.tuner.study.evaluate import Leaders
from tunebench.tuner.study.outcome import not_built
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.timing.measure import Control, clocks_for, measure_steadily, pick_clock
from tunebench.tuner.users_code import described

_KERNEL = str(Path(__file__).with_name("plain_product.py"))
_SIZE = re.compile(r"([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})", re.ASCII)
_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_DTYPES = ("float32", *_HALVES)
_SETTINGS = {Accuracy.TF32: {Setting.MATMUL.value: "tf32"}}
"""The settings of a program that accepts such an accuracy; PyTorch's defaults elsewhere."""
_EMULATED = "cuBLAS's emulation of fp32"
_LOWER = ("torch matmul=tf32", _EMULATED)
"""Products that are strict fp32's where a device has none of the kind."""
_QUICK = Leaders(finalist_ms=0.0)
"""The full battery is for what may win a study."""

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Point:
    """A product with its time and its error.

    Attributes:
        product: whose, and how it rounds.
        measurement: None where it was not timed.
        wrong: the errors of all draws of the inputs together, against float64; None where it gave no answer.
        configuration: of ours, the fastest of those that were tried.
        accuracy: of ours, what the gate held it to.
        tried: how many configurations of its class were tried.
        message: why it is no contender: it was refused, does not exist here, or does less than the others.
    """

    product: str
    measurement: Measurement | None = None
    wrong: Wrong | None = None
    configuration: Configuration | None = None
    accuracy: Accuracy | None = None
    tried: int = 0
    message: str = ""


@dataclass(frozen=True)
class Frontier:
    """Every product of one size, the fastest first, those without a time last."""

    problem: Problem
    device: Device
    environment: Environment
    points: Sequence[Point]

    @property
    def timed(self) -> list[tuple[Point, Measurement, Wrong]]:
        """The points that have a time and errors, with both."""
        return [(one, one.measurement, one.wrong) for one in self.points if one.measurement and one.wrong]

    @property
    def best(self) -> list[Point]:
        """The Pareto frontier: nothing is as fast and as exact as one of these, and better in one of them."""
        costs = [
            (one, (time.median_ms, wrong.rms))
            for one, time, wrong in self.timed
            if not one.message and isfinite(wrong.rms)
        ]

        def is_beaten(mine: tuple[float, float]) -> bool:
            return any(its != mine and its[0] <= mine[0] and its[1] <= mine[1] for _, its in costs)

        return [one for one, cost in costs if not is_beaten(cost)]


@dataclass
class RoundingClass:
    """Configurations that round alike.

    Attributes:
        rounding: the values of the tunables that they share.
        candidates: those to try, in order.
        results: of those that were tried.
    """

    rounding: Configuration
    candidates: Sequence[Configuration]
    results: list[TrialResult] = field(default_factory=list)

    @property
    def chosen(self) -> TrialResult | None:
        """The fastest one that is right, else one that was refused for its answers; None where none gave any."""
        timed = {one.measurement.median_ms: one for one in self.results if one.measurement is not None}
        refused = (one for one in self.results if one.status is TrialStatus.CORRECTNESS)
        return timed[min(timed)] if timed else next(refused, None)


def sizes_of(text: str) -> dict[str, int]:
    """Return the sizes that a text such as 1024x8192x4096 says: rows, inputs and outputs.

    Raises:
        UserError: it is none.
    """
    if (found := _SIZE.fullmatch(text)) is None:
        raise UserError(f"'{text:.40}' is no size of a product: give ROWSxINxOUT, such as 1024x8192x8192")
    return dict(zip(("rows", "in_features", "out_features"), map(int, found.groups()), strict=True))


def frontier(size: str, asked: FrontierRequest, tell: Callable[[str], None] = lambda _: None) -> Frontier:
    """Try every product of one size and return what each takes, and how wrong it is.

    Args:
        size: ROWSxINxOUT.
        tell: called with a line on what begins.

    Raises:
        UserError: there is no such size, dtype, mode or device.
        TunebenchError: a product killed the process that measures all of them.
    """
    sizes = sizes_of(size)
    if asked.dtype not in _DTYPES:
        raise UserError(f"the frontier has no dtype '{asked.dtype:.40}': use {', '.join(_DTYPES)}")
    if asked.mode is Mode.TRAIN:
        raise UserError("a product alone has no mode 'train': use eval or frozen")
    start_forkserver(PRELOAD)
    device = find_device(asked.device)
    found: dict[Configuration, tuple[Accuracy, RoundingClass]] = {}
    studies = [(one, _resolve(sizes, asked, one)) for one in Accuracy]
    for accuracy, resolved in studies:
        space = resolved.space.enumerate(_problem(resolved, asked.mode), device)
        for one in classes_of(space, _known(resolved, space, asked.mode), asked.trials):
            found.setdefault(one.rounding, (accuracy, one))
    ends = time.monotonic() + asked.seconds
    left = list(found.values())
    for accuracy, resolved in studies:
        classes = [one for of, one in left if of is accuracy]
        if classes and (now := time.monotonic()) < ends:
            _try(resolved, asked, classes, now + (ends - now) * len(classes) / len(left), tell)
        left = [(of, one) for of, one in left if of is not accuracy]
    tell("every product once more, for its time and its errors on the same inputs")
    chosen = [(accuracy, one.chosen) for accuracy, one in found.values()]
    answers = [(accuracy, one.configuration) for accuracy, one in chosen if one is not None]
    with alone_on(device, "tunebench frontier"):
        torchs, ours = run_isolated(CASE_SECONDS, _measure, sizes, asked, answers)
    measured = iter(ours)
    points = [*torchs, *(_point(*one, measured) for one in found.values())]
    points.sort(key=lambda one: one.measurement.median_ms if one.measurement else inf)
    resolved = studies[0][1]
    environment = current_environment(device, resolved.compiler.version())
    return Frontier(_problem(resolved, asked.mode), device, environment, points)


def _point(accuracy: Accuracy, of: RoundingClass, measured: Iterator[Point]) -> Point:
    """Return the point of a class, where it has an answer the next of those that were measured."""
    chosen, tried = of.chosen, len(of.results)
    point = Point("") if chosen is None else next(measured)
    refusal = "" if chosen is None or chosen.measurement is not None else f"refused: {chosen.message}"
    if chosen is None:
        refusal = f"{of.results[0].status}: {of.results[0].message}" if tried else "there was no time to try it"
    configuration = None if chosen is None else chosen.configuration
    message = (refusal or point.message).splitlines()[:1]
    return replace(
        point,
        product=str(of.rounding),
        configuration=configuration,
        accuracy=accuracy,
        tried=tried,
        message="".join(message),
    )


def _resolve(sizes: Mapping[str, int], asked: FrontierRequest, accuracy: Accuracy) -> Resolved:
    settings = _SETTINGS.get(accuracy, {})
    asked_for = {"device": asked.device, "settings": settings, "accuracy": accuracy}
    content = {"kernel": _KERNEL, "sizes": sizes, "dtype": asked.dtype, "modes": [asked.mode], **asked_for}
    return resolve(make_request(content, "frontier"))


def _problem(resolved: Resolved, mode: Mode) -> Problem:
    kind = resolved.device.torch_device.type
    found = problem_of(resolved.model, resolved.reference, mode, kind, resolved.settings)
    assert found is not None, "the block serves these dtypes and modes"
    return found.at(resolved.accuracy)


def _known(resolved: Resolved, space: ValidSpace, mode: Mode) -> list[Configuration]:
    """Return configurations that ship with kernels of this block, and the default, to look near them."""
    studies = shipped_studies(resolved.kernel, _problem(resolved, mode), resolved.device)
    nearest = sorted(studies, key=lambda study: study.distance)
    return [*(one.configuration for one in choose_warm_starts(space, nearest)), space[space.default]]


def classes_of(space: ValidSpace, known: Sequence[Configuration], trials: int) -> list[RoundingClass]:
    """Return the classes of a space, each with so many candidates: those nearest to known ones, then any."""
    rounding, columns = space.space.rounding, space.rounding_columns
    _, first, which = np.unique(space.indices[:, columns], axis=0, return_index=True, return_inverse=True)
    found, dice = [], random.Random(0)
    for number in range(len(first)):
        members = ValidSpace(space.space, space.indices[which.reshape(-1) == number])
        others = dice.sample(range(len(members)), min(trials, len(members)))
        candidates = [members[one] for one in dict.fromkeys([*map(members.nearest, known), *others])]
        shared = {name: value for name, value in candidates[0].items() if name in rounding}
        found.append(RoundingClass(Configuration(shared), candidates[:trials]))
    return found


def _try(
    resolved: Resolved,
    asked: FrontierRequest,
    classes: Sequence[RoundingClass],
    ends: float,
    tell: Callable[[str], None],
) -> None:
    """Try the candidates of classes, one of each in turn, until the time is over."""
    executor = make_executor(resolved, asked.mode)
    try:
        for number in range(asked.trials):
            turn = [one for one in classes if number < len(one.candidates)]
            if not turn or time.monotonic() > ends:
                return
            tell(f"accuracy={resolved.accuracy}: configuration {number + 1} of {len(turn)} classes")
            building = [executor.build(one.candidates[number]) for one in turn]
            for one, build in zip(turn, building, strict=True):
                if time.monotonic() > ends or not executor.slots:
                    return
                try:
                    one.results.append(executor.begin(one.candidates[number], build, _QUICK).result())
                except CompileError as error:
                    one.results.append(not_built(one.candidates[number], error))
    finally:
        executor.close()


# What follows runs in a process of its own.


def _measure(
    sizes: Mapping[str, int], asked: FrontierRequest, answers: Sequence[tuple[Accuracy, Configuration]]
) -> tuple[list[Point], list[Point]]:
    """Return the points of torch's products, and of configurations, on the same inputs."""
    resolved = _resolve(sizes, asked, Accuracy.EAGER)
    device, kernel = resolved.device, resolved.kernel
    subject = Subject.prepare(kernel, resolved.model, resolved.reference, asked.mode, device, Accuracy.EAGER)
    clocks = clocks_for(device, subject.work)
    control = Control(device, clocks[-1])
    draws = subject.oracle.cases[: subject.oracle.draws]
    weight = subject.reference.get_parameter("linear.weight").detach()
    strict = functional.linear(draws[0].inputs[0], weight)

    def point(
        name: str, product: Product, where: AbstractContextManager[None], dtype: torch.dtype | None = None
    ) -> Point:
        inputs = [case.inputs[0].to(dtype) for case in draws]

        def call() -> object:
            return product(inputs[0])

        try:
            with torch.no_grad(), where:
                answered = zip(draws, map(product, inputs), strict=True)
                errors = [Wrong.of(one.errors_of(answer)) for case, answer in answered for one in case.output.values()]
                measurement, _ = measure_steadily(call, pick_clock(clocks, [call]), control)
                is_strict = name in _LOWER and torch.equal(product(inputs[0]), strict)
        except UserError as error:
            return Point(name, message=str(error))
        except (LaunchError, RuntimeError) as error:
            return Point(name, message=described(error))
        message = "this device has none: its answers are strict fp32's" if is_strict else ""
        return Point(name, measurement, Wrong.together(errors), message=message)

    def ours(accuracy: Accuracy, configuration: Configuration) -> Point:
        plan = build_plan(kernel, configuration, subject.problem.at(accuracy), device, resolved.compiler)
        subject.model.pin(plan)
        return point("", subject.model, nullcontext())

    def torchs(setting: Setting, value: str) -> Point:
        where = under({setting.value: value}, weight.device.type)
        return point(f"torch {setting}={value}", partial(functional.linear, weight=weight), where)

    found = [ours(*one) for one in answers]
    if asked.dtype in _HALVES:
        return [torchs(Setting.REDUCTIONS, value) for value in ("reduced", "float32")], found
    points = [torchs(Setting.MATMUL, value) for value in ("ieee", "tf32")]
    for name, dtype in _HALVES.items():
        half = point(f"torch {name}", partial(functional.linear, weight=weight.to(dtype)), nullcontext(), dtype)
        points.append(replace(half, message=half.message or "a point of reference: operands rounded beforehand"))
    return [*points, point(_EMULATED, partial(functional.linear, weight=weight), _emulation(device))], found


@contextmanager
def _emulation(device: Device) -> Iterator[None]:
    """Let cuBLAS make products of fp32 from bf16, where this torch has a setting for it (pytorch/pytorch#195301).

    Raises:
        UserError: it has none.
    """
    if device.kind is not DeviceKind.CUDA:
        raise UserError("cuBLAS is for GPUs")
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    try:
        products.fp32_precision = "bfx9"
    except RuntimeError as error:
        raise UserError(f"torch {torch.__version__} has no setting for it") from error
    try:
        yield
    finally:
        products.fp32_precision = before
