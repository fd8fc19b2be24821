"""Evaluation on a Ray cluster: an actor for each device, which has its inputs and its reference, and builds as tasks.

Ray places actors and tasks, moves builds and results between machines, and runs a task again whose machine is lost. The
driver asks, tells and records: actors send results only.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunebench.tuner.build import Build
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import CompilerKilledError, DeviceMissingError, TunebenchError, UserError, WorkerError
from tunebench.tuner.isolation import settings, start_forkserver
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Comparison, Stage, TrialResult
from tunebench.tuner.study.account import Activity
from tunebench.tuner.study.evaluate import NOBODY, Finalist, Leaders, LocalEvaluator
from tunebench.tuner.study.executor import MOST_BUILDS, Building, Executor
from tunebench.tuner.study.worker import WorkerEvaluator
from tunebench.tuner.variant import Variant

Answer = TypeVar("Answer")

ANSWER_SECONDS = 10.0
"""For a cluster's address to answer at all."""

PLACEMENT_SECONDS = 120.0
"""For Ray to find a place for an actor; where it finds none, the study goes on without."""


def connect(address: str | None) -> None:
    """Connect to a cluster, unless this process is connected: to that of an address, else to one that runs on this
    machine or is named by RAY_ADDRESS, else to one that is started here and ends with this process.

    Raises:
        UserError: there is no cluster at the address.
    """
    if ray.is_initialized():
        return
    _require_answer(address or os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address=address, include_dashboard=None if address else False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"no Ray cluster at '{address}': {str(error).splitlines()[0]}") from error


def _require_answer(address: str) -> None:
    """Find out at once whether anything is at `HOST:PORT`: Ray would try for minutes. Others are for Ray to judge.

    Raises:
        UserError: there is nothing.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster at '{address}': {error}; 'ray start --head' says its address") from error


@dataclass(frozen=True)
class Share:
    """One actor's share of its machine: a GPU, or a share of the CPU's cores.

    Attributes:
        number: of the actor, from 0 on.
        cores: of a share of a CPU; 0 for a GPU.
    """

    number: int
    cores: int = 0

    def mine(self) -> Collection[int]:
        """The cores of this machine that are this share; none where it may use all."""
        if not self.cores:
            return ()
        cores = sorted(os.sched_getaffinity(0))
        first = self.number % max(1, len(cores) // self.cores) * self.cores
        return cores[first : first + self.cores]


Factory = Callable[..., LocalEvaluator]
"""Makes the evaluator in the worker process of an actor, which keeps to its argument `cores`; it travels by pickle."""


@dataclass(frozen=True)
class Work:
    """The evaluator that actors make, and the environment that they report.

    Attributes:
        environment: what results on a device are obtained with.
        settings: the driver's `TUNEBENCH_` variables.
        preload: modules that every worker process needs.
    """

    factory: Factory
    environment: Callable[[Device], Environment]
    settings: Mapping[str, str]
    preload: Sequence[str] = ()


def cores_of_a_share(workers: int) -> int:
    """How many cores of a cluster each of so many workers has."""
    return max(1, int(_resources().get("CPU", 1)) // workers)


def cluster_devices(name: str | None, cores: int) -> list[tuple[Device, str]]:
    """A cluster's devices of one model, each with its node.

    Args:
        name: `cuda`, `cpu`, or a device's own name, such as `NVIDIA H200`; None takes GPUs where there are any.
        cores: of a share of a CPU.

    Raises:
        DeviceMissingError: there is none of that name.
        UserError: they are of several models.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    on_gpus = name != "cpu" and any(node["Resources"].get("GPU") for node in nodes)
    found: list[tuple[Device, str]] = []
    for node in nodes:
        resource = "GPU" if on_gpus else "CPU"
        count = int(node["Resources"].get(resource, 0)) // (1 if on_gpus else cores)
        if not count:
            continue
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked = ray.remote(_device_here).options(num_gpus=on_gpus, num_cpus=0, scheduling_strategy=where)
        try:
            device: Device = ray.get(asked.remote("cuda" if on_gpus else "cpu"), timeout=PLACEMENT_SECONDS)
        except GetTimeoutError:
            told = f"within {PLACEMENT_SECONDS:.0f} s: are its devices taken?"
            raise DeviceMissingError(f"Ray's node {node['NodeManagerHostname']} did not answer {told}") from None
        if cores and not on_gpus:
            device = replace(device, multiprocessors=cores)
        found += [(device, node["NodeID"])] * count
    models = {device.name: device.model for device, _ in found}
    if name in models:
        return [(device, node) for device, node in found if device.name == name]
    if name not in (None, "cuda", "cpu") or not found or (name == "cuda" and not on_gpus):
        raise DeviceMissingError(
            f"the cluster has no device '{name or 'cuda'}': it has {', '.join(sorted(models)) or 'none'}"
        )
    if len({device.model for device, _ in found}) > 1:
        raise UserError(
            "the cluster's devices are of several models, whose times make no one ranking: tune one at a time, "
            + " or ".join(f"--device '{one}'" for one in sorted(models))
        )
    return found


class RayEvaluator:
    """Evaluates in an actor; the same questions and answers as a `WorkerEvaluator`, which the actor has.

    An actor that is lost, with its machine or alone, is replaced wherever Ray finds a place, and asked once more.

    Args:
        where: the device and the node that are meant; another node may take its place with a device of that model.
    """

    def __init__(self, work: Work, share: Share, where: tuple[Device, str]) -> None:
        self.device, self._node = where
        self.problem: Problem
        self.prepared: Mapping[Activity, float] = {}
        self.share = share
        self._work = work
        self._actor: Any = None
        self._ends = False

    def prepare(self) -> None:
        """Have an actor that can evaluate.

        Raises:
            UserError: the factory refused.
            WorkerError: no place was found for it, or it does not come up.
        """
        on_gpu = self.device.kind is DeviceKind.CUDA
        actor = ray.remote(_Actor).options(
            num_gpus=int(on_gpu),
            num_cpus=0 if on_gpu else self.share.cores,
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._node, soft=True),
        )
        self._actor = actor.remote(self._work, self.share)
        try:
            device = ray.get(self._actor.device.remote(self.device.kind), timeout=PLACEMENT_SECONDS)
        except GetTimeoutError:
            self._let_go()
            raise WorkerError(f"Ray found no place for it within {PLACEMENT_SECONDS:.0f} s") from None
        if device.model != self.device.model:
            self._let_go()
            raise WorkerError(f"Ray found a place for it on another model alone, {device.name}")
        answer = ray.get(self._actor.prepare.remote())
        if isinstance(answer, TunebenchError):
            self._let_go()
            raise answer
        self.device, self.problem = device, answer

    def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
        """One variant's result; see `WorkerEvaluator.evaluate`."""
        result: TrialResult = self._ask("ask", "evaluate", configuration, build, leaders)
        return replace(result, build=build)

    def sanitize(self, finalists: Sequence[Finalist]) -> list[Stage]:
        """See `WorkerEvaluator.sanitize`."""
        stages: list[Stage] = self._ask("ask", "sanitize", list(finalists))
        return stages

    def compare(self, finalists: Sequence[Finalist], default: Finalist | None, leader: Configuration) -> Comparison:
        """See `WorkerEvaluator.compare`."""
        comparison: Comparison = self._ask("ask", "compare", list(finalists), default, leader)
        return comparison

    def run(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Run a function in the actor, with the device for itself; return its answer."""
        answer: Answer = self._ask("run", function, *arguments)
        return answer

    def kill(self) -> None:
        """End what another thread waits for here."""
        self._ends = True
        self._let_go()

    def close(self) -> None:
        """Let go of the actor and its device."""
        self.kill()

    def _ask(self, question: str, *arguments: object) -> Any:
        """An actor's answer.

        Raises:
            TunebenchError: what it raised there.
            WorkerError: two actors in a row were lost, or there is no place for another one.
        """
        for _ in range(2):
            try:
                if self._ends:
                    break
                if self._actor is None:
                    self.prepare()
                answer = ray.get(getattr(self._actor, question).remote(*arguments))
            except RayActorError:
                self._actor = None
                continue
            if isinstance(answer, TunebenchError):
                raise answer
            return answer
        raise WorkerError("the study has ended" if self._ends else "two of Ray's actors in a row were lost")

    def _let_go(self) -> None:
        if (actor := self._actor) is not None:
            ray.kill(actor)


class RayExecutor(Executor):
    """Actors of a cluster, and compilers as its tasks.

    Args:
        evaluators: see `Executor`.
    """

    def __init__(self, kernel: Kernel, evaluators: Sequence[RayEvaluator], compiler: Compiler) -> None:
        free = int(_resources().get("CPU", 0)) - sum(one.share.cores for one in evaluators)
        super().__init__(evaluators, max(1, min(MOST_BUILDS, free)))
        # Where evaluation takes all cores, compilers share them.
        self._cores = max(0, min(1, free))
        self._kernel = kernel
        self._compiler = compiler
        self._builds: dict[str, _RayBuilding] = {}

    def build(self, configuration: Configuration) -> Building:
        """See `Executor.build`."""
        variant = self._kernel.variant(configuration, self.problem, self.device.architecture)
        if variant.digest not in self._builds:
            self._builds[variant.digest] = _RayBuilding(self._compiler.of(variant), variant, self._cores)
        return self._builds[variant.digest]

    def run(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """See `Executor.run`."""
        first = self._evaluators[0]
        assert isinstance(first, RayEvaluator)
        return first.run(function, *arguments)


class _RayBuilding:
    """A build as a task; Ray runs it again where its machine is lost."""

    def __init__(self, compiler: Compiler, variant: Variant, cores: int) -> None:
        self._file = variant.source.file
        self._task = ray.remote(_build).options(num_cpus=cores).remote(settings(), compiler, variant)

    def result(self) -> Build:
        """See `Building.result`."""
        try:
            answer: Build | TunebenchError = ray.get(self._task)
        except RayError as error:
            raise CompilerKilledError(f"{self._file} was not compiled: {str(error).splitlines()[0]}", "") from error
        if isinstance(answer, TunebenchError):
            raise answer
        return answer


def _resources() -> Mapping[str, float]:
    found: Mapping[str, float] = ray.cluster_resources()
    return found


# What follows runs on the cluster. Ray wraps what is raised there in errors of its own, so that errors are answers.


def _device_here(name: str) -> Device:
    return find_device(name)


def _build(given: Mapping[str, str], compiler: Compiler, variant: Variant) -> Build | TunebenchError:
    os.environ.update(given)
    try:
        return BuildCache().build(compiler, variant)
    except TunebenchError as error:
        return error


class _Actor:
    """Has one device, and on it a worker process that a variant may crash."""

    def __init__(self, work: Work, share: Share) -> None:
        os.environ.update(work.settings)
        self._work = work
        self._share = share
        self._evaluator: WorkerEvaluator | None = None

    def device(self, kind: DeviceKind) -> Device:
        """The device that Ray has given it."""
        device = find_device(kind.value)
        self._device = replace(device, multiprocessors=self._share.cores) if self._share.cores else device
        return self._device

    def prepare(self) -> Problem | TunebenchError:
        """Begin; what the problem is."""
        start_forkserver(self._work.preload)
        factory = functools.partial(self._work.factory, cores=self._share.mine())
        lock = self._device.uuid if self._device.kind is DeviceKind.CUDA else None
        try:
            self._evaluator = WorkerEvaluator(factory, self._work.environment(self._device), lock)
        except TunebenchError as error:
            return error
        return self._evaluator.problem

    def ask(self, method: str, *arguments: object) -> object:
        """Return what a method of the worker's evaluator answers; a result without its build, which the driver has."""
        try:
            answer = getattr(self._evaluator, method)(*arguments)
        except TunebenchError as error:
            return error
        return replace(answer, build=None) if isinstance(answer, TrialResult) else answer

    def run(self, function: Callable[..., Answer], *arguments: object) -> Answer | TunebenchError:
        """Return what a function returns here, with the device for itself."""
        try:
            with alone_on(self._device, "tunebench tune"):
                return function(*arguments)
        except TunebenchError as error:
            return error
