"""Choice of the plan that serves a problem on a device: made once, for all models of a kernel in this process."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tunebench.kernels.runtime.choices_file import loaded_choice
from tunebench.kernels.runtime.duel import Score, winner_of
from tunebench.kernels.runtime.latest import Latest
from tunebench.kernels.runtime.on_sight import tune_on_sight
from tunebench.kernels.runtime.policy import Policy, seconds_to_tune
from tunebench.kernels.runtime.selection import STEP_OPTION, UNMEASURED_OPTIONS, Choice, Tier, what_is_known
from tunebench.tuner.compile.building import forget_shared_builds, known_build, shared_build
from tunebench.tuner.compile.compilers import default_compiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.errors import CompileError, CompilerMissingError, DiskFullError, LaunchError, TunebenchError
from tunebench.tuner.kernel import Kernel, Plan
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.settings import settings_of

Decided = tuple[Choice, Plan | None]
"""The choice for a problem and its plan; without a plan the reference's operations run."""
MakeReady = Callable[[Plan], None]
"""A function that makes what a plan's first forward would make beyond its binary; LaunchError where it cannot.

It may run in a thread of its own."""
DuelOf = Callable[[Sequence[Plan]], Sequence[Score]]
"""The duel between plans and the reference, on the inputs of the call at hand."""
BeginBuild = Callable[..., Future[Any]]
"""A function that begins what has to be there first, such as the build of a variant: takes `wait`."""


@dataclass(frozen=True)
class Occasion:
    """The conditions that a decision depends on.

    Attributes:
        needs_gradient: with or without one a call costs the host something else.
    """

    problem: Problem
    device: Device
    policy: Policy
    needs_gradient: bool

    def is_captured(self) -> bool:
        """Return whether the call is recorded into a CUDA graph, where nothing may wait for the device."""
        return self.device.kind is DeviceKind.CUDA and torch.cuda.is_current_stream_capturing()


class _NotBuiltError(Exception):
    """Something has to be built first."""

    def __init__(self, builds: Sequence[BeginBuild]) -> None:
        super().__init__()
        self.builds = builds


_BEING_BUILT = Choice(
    None, Tier.REFERENCE, "its kernel is being built; the reference serves until it is ready", being_built=True
)
_CAPTURED = Choice(
    None, Tier.REFERENCE, "nothing is built or loaded while a CUDA graph is captured: call the model once before"
)

_MOST_PROBLEMS = 16384
_SOON_SECONDS = 0.01
"""Seconds that a call waits for a plan to be made ready before it goes on without."""

_recorded: Latest[tuple[str, Problem, Device, Choice | None, bool], Decided] = Latest(_MOST_PROBLEMS)
_settled: Latest[tuple[str, Problem, Device, bool], Decided] = Latest(_MOST_PROBLEMS)
_tuned: Latest[tuple[str, Problem, Device], None] = Latest(_MOST_PROBLEMS)
_under_way: Latest[tuple[str, Occasion], list[Future[Any]]] = Latest(_MOST_PROBLEMS)
_made_ready: Latest[tuple[str, Problem, Device, Configuration], Future[Plan]] = Latest(_MOST_PROBLEMS)
_passed_over: Latest[tuple[str, Problem, Device, Configuration], None] = Latest(_MOST_PROBLEMS)
# A model may hold another tuned model, whose first forward then stands inside the duel of the outer one.
_deciding = threading.RLock()
_tuning = threading.RLock()


def decide(kernel: Kernel, occasion: Occasion, make_ready: MakeReady | None, duel_of: DuelOf, *, wait: bool) -> Decided:
    """Return the plan for the calls of an occasion; where a kernel has to be built first, the reference until it is.

    Args:
        make_ready: None where there is nothing beyond the binary.
        wait: build now, whatever has to be built.
    """
    if occasion.policy is Policy.REFERENCE:
        return Choice(None, Tier.REFERENCE, "the policy is 'reference'"), None
    tunes = occasion.policy is Policy.TUNE and not occasion.problem.options.keys() & {*UNMEASURED_OPTIONS}
    if occasion.policy is Policy.TUNE:
        occasion = replace(occasion, policy=Policy.BEST)
    wait = wait or tunes
    if occasion.is_captured():
        return _ready_before(kernel, occasion)
    if tunes:
        _tune_once(kernel, occasion.problem, occasion.device)
    key = (kernel.digest, occasion)
    while True:
        builds = _under_way.get(key, [])
        if not wait and not all(build.done() for build in builds):
            return _BEING_BUILT, None
        # Nobody waits for a compiler by waiting for who decides.
        wait_for(builds)
        try:
            with _deciding:
                decided = _decide(kernel, occasion, make_ready, duel_of)
        except _NotBuiltError as missing:
            _under_way[key] = [begin(wait=wait) for begin in missing.builds]
        else:
            _under_way.pop(key, None)
            return decided


def _begin_in_fork() -> None:
    """Start with no pending builds and new locks after a fork: no thread is left there to finish or release the old."""
    global _deciding, _tuning
    _deciding, _tuning = threading.RLock(), threading.RLock()
    _under_way.clear()
    _made_ready.clear()


os.register_at_fork(after_in_child=_begin_in_fork)


def _tune_once(kernel: Kernel, problem: Problem, device: Device) -> None:
    """Tune a problem that has no measurement here yet; where that fails, warn once and go on without."""
    key = (kernel.digest, problem, device)
    with _tuning:
        if key in _tuned:
            return
        _tuned[key] = None
        evidence = what_is_known(kernel, problem, device).evidence()
        if loaded_choice(kernel, problem, device) is not None or (evidence is not None and evidence.measured):
            return
        try:
            tune_on_sight(kernel, problem, device, seconds_to_tune())
        except TunebenchError as error:
            warnings.warn(f"{kernel.name} was not tuned for {problem}: {error}", RuntimeWarning, stacklevel=7)


def forget_plans() -> None:
    """Look every configuration up again at the next forward of a new model, as after a study has ended."""
    with _deciding:
        _recorded.clear()
        _settled.clear()
        _under_way.clear()
        _made_ready.clear()
        _passed_over.clear()
        forget_shared_builds()


def _ready_before(kernel: Kernel, occasion: Occasion) -> Decided:
    """Return the plan that an earlier call made ready, as far as the policy allows it."""
    problem, device, policy = occasion.problem, occasion.device, occasion.policy
    found = None
    if policy is Policy.BEST:
        found = _settled.get((kernel.digest, problem, device, occasion.needs_gradient))
    if found is None:
        loaded = loaded_choice(kernel, problem, device)
        found = _recorded.get((kernel.digest, problem, device, loaded, policy is Policy.EXACT))
    return found or (_CAPTURED, None)


def _decide(kernel: Kernel, occasion: Occasion, make_ready: MakeReady | None, duel_of: DuelOf) -> Decided:
    """Return the choice and plan to use from now on.

    Raises:
        _NotBuiltError: something has to be built first.
    """
    problem, device = occasion.problem, occasion.device
    loaded = loaded_choice(kernel, problem, device)
    if loaded is None and occasion.policy is Policy.BEST:
        key = (kernel.digest, problem, device, occasion.needs_gradient)
        if key not in _settled:
            _settled[key] = _settle(kernel, problem, device, make_ready, duel_of)
        return _settled[key]
    return _without_duel(kernel, occasion, make_ready, loaded)


def _without_duel(kernel: Kernel, occasion: Occasion, make_ready: MakeReady | None, loaded: Choice | None) -> Decided:
    """Return the choice of a loaded file, else the best result; the first of them that this machine can run."""
    problem, device, exact = occasion.problem, occasion.device, occasion.policy is Policy.EXACT
    key = (kernel.digest, problem, device, loaded, exact)
    if key not in _recorded:
        choices = list(what_is_known(kernel, problem, device).choices()) if loaded is None else [loaded]
        setting = " ".join(f"{name}={value}" for name, value in settings_of(problem.options).items())
        if setting and choices[0].tier is Tier.DEFAULT:
            # The default was picked beside a reference that may do less, and would often lose to this one.
            choices = [Choice(None, Tier.REFERENCE, f"nothing was measured under {setting} on {device.name}")]
        elif STEP_OPTION in problem.options and problem.accuracy is Accuracy.EAGER:
            choices = [Choice(None, Tier.REFERENCE, "that a step is as exact as eager shows in a duel alone")]
        elif exact and not (choices[0].measured or choices[0] is loaded):
            reason = f"nothing was measured and confirmed for this problem on {device.name}"
            choices = [Choice(None, Tier.REFERENCE, reason)]
        _recorded[key] = _runnable(kernel, choices[: 1 if exact else None], problem, device, make_ready)[0]
    return _recorded[key]


def _settle(kernel: Kernel, problem: Problem, device: Device, make_ready: MakeReady | None, duel_of: DuelOf) -> Decided:
    """Return the choice that evidence decides, and where evidence does not suffice the winner of a duel."""
    known = what_is_known(kernel, problem, device)
    evidence, contenders = known.evidence(), known.contenders()
    if evidence is not None:
        first = _runnable(kernel, [evidence, *contenders], problem, device, make_ready)[0]
        if first[0] is evidence:
            return first
    ready = _runnable(kernel, contenders, problem, device, make_ready, all_of_them=True)
    if ready[0][1] is None:
        return ready[0]
    scores = duel_of([plan for _, plan in ready if plan is not None])
    winner = winner_of(scores)
    if winner is not None:
        choice, plan = ready[winner]
        said = f"{scores[winner]} the reference's speed in a duel on a call's own inputs"
        return replace(choice, reason=f"{choice.reason}; {said}"), plan
    told = ", ".join(f"{choice.tier} {score}" for (choice, _), score in zip(ready, scores, strict=True))
    reason = f"the reference won a duel on a call's own inputs: {told} ({ready[0][0].reason})"
    return Choice(None, Tier.REFERENCE, reason), None


def _runnable(
    kernel: Kernel,
    choices: Sequence[Choice],
    problem: Problem,
    device: Device,
    make_ready: MakeReady | None,
    *,
    all_of_them: bool = False,
) -> list[Decided]:
    """Return the first choice that this machine can run, or all of them; the reference where it can run none.

    What it cannot run is warned of once and passed over.

    Raises:
        _NotBuiltError: one, or some, of them have to be built first.
    """
    # A model that was right before must stay right: say what is missing, and at last take the reference's operations.
    missing = ""
    ready: list[Decided] = []
    builds: list[BeginBuild] = []
    for choice in choices:
        if ready and not all_of_them:
            break
        if choice.configuration is None:
            ready.append((choice, None))
            continue
        try:
            ready.append((choice, _ready_plan(kernel, choice.configuration, problem, device, make_ready)))
        except _NotBuiltError as error:
            builds += error.builds
            if not all_of_them:
                break
        except CompilerMissingError as error:
            missing = str(error)
        except (CompileError, LaunchError, DiskFullError, OSError) as error:
            missing = str(error)
            passed_over = (kernel.digest, problem, device, choice.configuration)
            if passed_over not in _passed_over:
                _passed_over[passed_over] = None
                message = f"{kernel.name} passes over its {choice.tier} configuration: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=8)
    if builds:
        raise _NotBuiltError(builds)
    if not ready:
        warnings.warn(f"{kernel.name} runs the reference's operations: {missing}", RuntimeWarning, stacklevel=8)
        ready.append((Choice(None, Tier.REFERENCE, missing), None))
    return ready


def _ready_plan(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device, make_ready: MakeReady | None
) -> Plan:
    """Return a plan ready to run, with all that its first forward would make.

    Raises:
        _NotBuiltError: something has to be made first.
        CompileError, CompilerMissingError, DiskFullError, OSError, LaunchError: it cannot run here.
    """
    key = (kernel.digest, problem, device, configuration)
    making = _made_ready.get(key)
    if making is not None and making.done():
        return making.result()
    if making is not None:
        raise _NotBuiltError([lambda wait: making])  # noqa: ARG005 - whoever waits does so for what is under way
    plan = _plan(kernel, configuration, problem, device)
    if make_ready is None:
        return plan

    def begin(*, wait: bool) -> Future[Plan]:
        future = _made_ready[key] = Future()
        if wait:
            _make_ready(future, plan, make_ready)
        else:
            threading.Thread(target=_make_ready, args=(future, plan, make_ready), name="ready", daemon=True).start()
            wait_for([future], _SOON_SECONDS)
        return future

    raise _NotBuiltError([begin])


def _make_ready(future: Future[Plan], plan: Plan, make_ready: MakeReady) -> None:
    try:
        make_ready(plan)
    except Exception as error:  # noqa: BLE001 - it is raised where the plan is asked for
        future.set_exception(error)
    except BaseException as error:
        future.set_exception(error)
        raise
    else:
        future.set_result(plan)


def _plan(kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> Plan:
    """Return a plan ready to run.

    Raises:
        _NotBuiltError: it has to be built first.
        CompileError, CompilerMissingError, DiskFullError, OSError: it cannot be built.
        LaunchError: the device refused the binary.
    """
    variant = kernel.variant(configuration, problem, device.architecture)
    compiler = default_compiler(device, kernel.languages)
    build = known_build(compiler, variant)
    if build is None or not build.done():
        raise _NotBuiltError([partial(shared_build, compiler, variant)])
    return Plan(kernel, configuration, problem, device, compiler.load(build.result(), device.index))
