"""The full battery: the one list of its stages, and how they are run."""

from __future__ import annotations

import contextlib
import enum
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.refusal import Claim
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.gate.stages.call_sequences import (
    copies,
    growth,
    held_results,
    instances,
    later_calls,
    same_memory,
    threads,
)
from tunebench.tuner.gate.stages.callers import gradients, hooks, keywords, training
from tunebench.tuner.gate.stages.inputs import distributions, non_finite, signed_zeros
from tunebench.tuner.gate.stages.layouts import form, layouts
from tunebench.tuner.gate.stages.manners import manners
from tunebench.tuner.gate.stages.sanitized import NAME as SANITIZER
from tunebench.tuner.gate.stages.sanitized import inspection_or_refusal, sanitized
from tunebench.tuner.gate.stages.sizes import batches, large, sizes
from tunebench.tuner.gate.stages.state import construction, mode, settings, statistics, weights
from tunebench.tuner.gate.stages.streams import devices, graphs, streams
from tunebench.tuner.gate.stages.torch_features import autocast, compiled, dtypes
from tunebench.tuner.isolation import IsolationError
from tunebench.tuner.result import Verdict


class Depth(enum.StrEnum):
    """How much of the battery is run."""

    FINALIST = "finalist"
    """The stages about what one binary and the code around it can get wrong."""
    EVERYTHING = "everything"
    """Also what takes seconds and is the same for every configuration of a kernel."""


@dataclass(frozen=True)
class Step:
    """One stage of the full battery.

    Attributes:
        run: does it with the harness; raises `StageRefused`.
        loss: what a user of the model would see where it is refused.
        claim: what it is about.
        depth: from which depth on it is run.
    """

    name: str
    run: Callable[[Harness], None]
    loss: str
    claim: Claim = Claim.DROP_IN
    depth: Depth = Depth.FINALIST

    @property
    def is_aside(self) -> bool:
        """Whether a `Lane` may run it while others are run."""
        return self.name not in _TOGETHER


STEPS: Sequence[Step] = (
    Step("construction", construction, "a model made from the same seed has other weights", Claim.PROBLEM),
    Step("distributions", distributions, "wrong values for other inputs of the same shapes", Claim.PROBLEM),
    Step("not finite", non_finite, "NaN, infinities, tiny numbers or large integers come out as something else"),
    Step("form", form, "view() fails on the result, or its parts have no names or one memory"),
    Step("layouts", layouts, "wrong values, or an error, for tensors that lie otherwise in memory"),
    Step("sizes", sizes, "wrong values, or an error, at other sizes"),
    Step("same memory", same_memory, "yesterday's answer for today's inputs", Claim.PROBLEM),
    Step("later calls", later_calls, "wrong values after some calls", Claim.PROBLEM),
    Step("held results", held_results, "a result that is kept changes later", Claim.PROBLEM),
    Step("weights", weights, "training or loading weights does not change the output", Claim.PROBLEM),
    Step("statistics", statistics, "changed statistics or settings of a normalisation are not seen"),
    Step("mode", mode, "train() and eval() do not do what they say"),
    Step("dtypes", dtypes, "wrong values, or an error, after .half() or .double(), or for integers of another width"),
    Step("gradients", gradients, "the model cannot be trained, or trains wrongly"),
    Step("autocast", autocast, "another type or other values under autocast"),
    Step("streams", streams, "results are read before they are there", Claim.PROBLEM),
    Step("graphs", graphs, "the model cannot be captured in a CUDA graph"),
    Step("devices", devices, "an error, or wrong values, on a second GPU"),
    Step("signed zeros", signed_zeros, "zeros come out with another sign", depth=Depth.EVERYTHING),
    Step("batches", batches, "wrong values, or an error, in one model called at several sizes", depth=Depth.EVERYTHING),
    Step("instances", instances, "a second model gets the first one's answers", Claim.PROBLEM, Depth.EVERYTHING),
    Step("growth", growth, "each call leaves memory behind until there is none", Claim.PROBLEM, Depth.EVERYTHING),
    Step("copies", copies, "a deep copy, or a model that was saved, is no model of its own", depth=Depth.EVERYTHING),
    Step("threads", threads, "wrong values where two threads call one model", depth=Depth.EVERYTHING),
    Step("settings", settings, "a changed eps, slope or factor does not change the output", depth=Depth.EVERYTHING),
    Step("hooks", hooks, "forward hooks do not fire, or what they return is lost", depth=Depth.EVERYTHING),
    Step("keywords", keywords, "an error where inputs are given by name", depth=Depth.EVERYTHING),
    Step("training", training, "training that freezes, adds up or derives twice goes wrong", depth=Depth.EVERYTHING),
    Step(
        "manners", manners, "wrong values in another mode, in inference mode or with autograd", depth=Depth.EVERYTHING
    ),
    Step("large", large, "wrong values beyond 2^31 elements", depth=Depth.EVERYTHING),
    Step("torch.compile", compiled, "torch.compile fails, or changes the values", depth=Depth.EVERYTHING),
    Step(SANITIZER, sanitized, "memory that is not its own, or a race", Claim.PROBLEM, Depth.EVERYTHING),
)
"""In the order they are told, cheap ones first."""

_LONGEST = "torch.compile"
_TOGETHER = {
    "construction",
    "distributions",
    "not finite",
    "form",
    "layouts",
    "sizes",
    "streams",
    "graphs",
    "devices",
    "training",
    "manners",
    "large",
    SANITIZER,
}
"""The names of those that no lane runs: `training` and `manners` also ask at sizes that `sizes` has met, and the others
take as long as what a lane runs, or are about a GPU."""


DEATH_AS_DROP_IN = "process, as a drop-in"
"""The stage that refuses a file whose process dies of questions that are not about the problem."""

_STEPS = {step.name: step for step in STEPS}


def claim_of(stage: str) -> Claim:
    """Return what a stage is about; the stages of the quick battery are all about the problem."""
    if stage == DEATH_AS_DROP_IN:
        return Claim.DROP_IN
    return _STEPS[stage].claim if stage in _STEPS else Claim.PROBLEM


def loss_of(stage: str) -> str:
    """Return what a user of the model would see where a stage is refused; nothing where its own detail says so."""
    if stage == DEATH_AS_DROP_IN:
        return "the process dies, or its memory is overwritten, of inputs that the problem does not have"
    return _STEPS[stage].loss if stage in _STEPS else ""


def of_full_battery(stage: str) -> bool:
    """Whether a stage is one of the full battery, which a study runs beside each variant that may win."""
    return stage in _STEPS and _STEPS[stage].depth is Depth.FINALIST


def proven(verdict: Verdict) -> bool:
    """Whether a verdict holds every stage that a finalist has to pass."""
    names = {stage.name for stage in verdict.stages}
    return all(step.name in names for step in STEPS if step.depth is Depth.FINALIST)


@dataclass(frozen=True)
class _Ended:
    """The findings of a step: the details of its stage, or why it did not pass."""

    seconds: float
    found: Sequence[str] | StageRefused


class Lane:
    """A thread that runs the stages which need nothing of others, with processes of its own, while others are run.

    Args:
        make: makes the answers of a reference and the contender in these processes.
        kill: kills these processes for good.

    Attributes:
        contender: None where it could not be made, so that nothing is run here.
    """

    def __init__(self, make: Callable[[], tuple[Answers, Contender]], kill: Callable[[], None]) -> None:
        self.contender: Contender | None = None
        self._asked = ""
        self._make, self._kill = make, kill
        self._steps: dict[str, Future[_Ended | None]] = {}
        self._pool = ThreadPoolExecutor(1)
        self._watching = ThreadPoolExecutor(1)
        self._begun = self._pool.submit(self._begin)

    def _begin(self) -> Harness | None:
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                answers, self.contender = self._make()
        except (*FAILURES, TunebenchError):  # whoever runs the other stages finds the same
            return None
        return Harness(answers, self.contender, self._note)

    def _note(self, label: str) -> None:
        self._asked = label

    def begin(self, steps: Sequence[Step], harness: Harness) -> None:
        """Run those of these steps that can be run here, the longest first; the sanitizer beside them.

        Args:
            harness: of whoever runs the others. It says what is watched, since the lane's processes may still begin.
        """
        for step in sorted(steps, key=lambda step: step.name != _LONGEST):
            if step.is_aside:
                self._steps[step.name] = self._pool.submit(self._run, step)
            elif step.name == SANITIZER:
                with torch.no_grad(), harness.reference_first():
                    self._steps[step.name] = self._watching.submit(_timed, inspection_or_refusal(harness))

    def _run(self, step: Step) -> _Ended | None:
        harness = self._begun.result()
        return None if harness is None else _run(step, harness)

    def give_back(self) -> str | None:
        """Return the name of a step that has not begun, and is not run here any more; None where all have.

        The longest stays: the processes here may be importing what it needs, and no others have begun to.
        """
        others = (name for name in reversed(self._steps) if name != _LONGEST)
        name = next((name for name in others if self._steps[name].cancel()), None)
        if name is not None:
            del self._steps[name]
        return name

    def runs(self, step: Step) -> bool:
        """Whether a step was begun here."""
        return step.name in self._steps

    def has_ended(self, step: Step) -> bool:
        """Whether a step is over that was begun here."""
        return self.runs(step) and self._steps[step.name].done()

    def ended(self, step: Step, log: StageLog) -> _Ended | None:
        """Wait for what a step has found; None where it could not be run here.

        Raises:
            SandboxError: a process is gone; the log has the question.
        """
        try:
            return self._steps[step.name].result()
        except IsolationError:
            log.ask(self._asked)
            raise

    def close(self) -> None:
        """Run no more of them, and wait for the one that is run: what it asks ends with the processes."""
        for pool in (self._pool, self._watching):
            pool.shutdown(wait=False, cancel_futures=True)
        self._kill()
        self._pool.shutdown()


def _run(step: Step, harness: Harness) -> _Ended:
    def run() -> Sequence[str]:
        harness.begin(step.name)
        with torch.no_grad(), harness.reference_first():
            step.run(harness)
        return harness.summary

    return _timed(run)


def _timed(run: Callable[[], Sequence[str]]) -> _Ended:
    started = time.perf_counter()
    found: Sequence[str] | StageRefused
    try:
        found = run()
    except StageRefused as refusal:
        found = refusal
    return _Ended(time.perf_counter() - started, found)


def run_battery(
    answers: Answers,
    contender: Contender,
    log: StageLog,
    depth: Depth,
    *,
    claim: Claim = Claim.DROP_IN,
    keep_going: bool = False,
    lane: Lane | None = None,
) -> None:
    """Run the full battery; the first refusal ends it.

    Args:
        answers: of the reference, kept from one contender to the next.
        log: where each stage is noted, in the order of the list.
        claim: what is to be shown: a drop-in takes every step, being right for the problem those that are about it.
        keep_going: run every stage, whatever the earlier ones found.
        lane: runs some of them meanwhile.
    """
    harness = Harness(answers, contender, log.ask)
    steps = [
        step
        for step in STEPS
        if not (step.depth is Depth.EVERYTHING and depth is Depth.FINALIST) and claim in (step.claim, Claim.DROP_IN)
    ]
    if lane is not None:
        lane.begin(steps, harness)
    with _small_scale(answers.device):
        ended = _as_they_come(steps, harness, log, lane)
        for step, one in zip(steps, ended, strict=False):
            log.add(step.name, one.seconds, one.found)
            if isinstance(one.found, StageRefused) and not keep_going:
                return


def _as_they_come(steps: Sequence[Step], harness: Harness, log: StageLog, lane: Lane | None) -> Iterator[_Ended]:
    """Yield what steps have found, in their order; while one is run in the lane, others are run here."""
    here = deque(step for step in steps if lane is None or not lane.runs(step))
    ended: dict[str, _Ended] = {}

    def run_here(step: Step) -> None:
        log.begin(step.name)
        ended[step.name] = _run(step, harness)

    for step in steps:
        while step.name not in ended and not (lane is not None and lane.has_ended(step)):
            if here:
                run_here(here.popleft())
            elif lane is not None and (name := lane.give_back()) is not None:
                run_here(_STEPS[name])
            else:
                break
        if lane is not None and lane.runs(step):
            log.begin(step.name)
            if (one := lane.ended(step, log)) is not None:
                ended[step.name] = one
                _show_here(one, harness.answers)
            else:
                run_here(step)
        yield ended[step.name]


def _show_here(ended: _Ended, answers: Answers) -> None:
    """Have what was refused in a lane shown by the processes that are here: those of the lane are at work."""
    if isinstance(ended.found, StageRefused) and ended.found.source is not None:
        ended.found.source = answers.at(ended.found.source.sizes)


@contextlib.contextmanager
def _small_scale(device: torch.device) -> Iterator[None]:
    """Run on one thread on the CPU, and without warnings.

    Tensors are so small here that waking other threads costs more than they save. torch warns of tensors of size 0,
    which the stages make on purpose.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
