"""A study's winner is judged once more where its own code cannot reach: kernel, reference and judge in three processes.

Trials are judged in the process that runs them, next to the kernel's own Python code. What wins is served and shipped,
so that it goes through the quick battery across the gate's boundary, on inputs that the worker has never seen.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from tunebench.tuner.build import Build
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import KernelFolderError, OutOfTimeError, WorkerError
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.boundary.sandbox import (
    ReferenceSandboxError,
    RemoteContender,
    RemoteSource,
    Sandbox,
    SandboxError,
)
from tunebench.tuner.gate.boundary.spec import Files, Loaded, SandboxSpec
from tunebench.tuner.gate.case import Case
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.examine import examine, refusals_kept
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.faults import FAILURES, ReferenceRefusal
from tunebench.tuner.gate.oracle import consult_reference
from tunebench.tuner.gate.process_state import Watch
from tunebench.tuner.gate.sources import Sizes, Source, capped, divided
from tunebench.tuner.gate.stage_log import StageLog
from tunebench.tuner.gate.tolerance import FEW_SAMPLES_MULTIPLE
from tunebench.tuner.isolation import DeathError, HungError, asked_again_if_killed, run_isolated
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import Stage
from tunebench.tuner.study.evaluate import Finalist
from tunebench.tuner.users_code import described

NAME = "boundary"
_UNASKED = "not asked across the boundary"
SECONDS = 600.0
MOST_BYTES = 64 << 20
"""Moved by one call: inputs and outputs travel between the processes. What moves more is asked at reduced sizes."""

_COPIES = 24
"""Room for so many times what a call moves is needed by all three processes: inputs and answers, in float64 as well."""
_MOST_BYTES_ON_CPU = 512 << 20
"""Through a pipe more would take minutes."""
_CAPS = (256, 128, 64, 32, 16, 8)


Make = Callable[[], tuple[Source, KernelContender]]
"""Makes the reference's source and a contender; it runs the code of the kernel's folder."""


def _load(make: Make, watch: Watch) -> Loaded:
    watch.start()
    source, contender = make()
    return Loaded(source.reference, source.device, contender.model)


@dataclass(frozen=True)
class ConfirmWinner:
    """Judges finalists of one study across the boundary.

    Attributes:
        reference: the file of the kernel's reference.
        path: of the kernel's files.
        make: makes a configuration's contender in its process, see `Make`.
        exemptions: what the kernel has declared.
        bytes: moved by one call at the study's sizes.
        small: that is little enough to travel between processes.
        accuracy: how wrong the winner may be; it is asked at the study's own sizes only.
    """

    reference: Files
    path: Path
    make: Callable[[Configuration, Build], tuple[Source, KernelContender]]
    exemptions: Exemptions
    mode: Mode
    bytes: int
    small: bool
    accuracy: Accuracy = Accuracy.TOLERANCE

    def __call__(self, finalist: Finalist, seconds: float = math.inf) -> Stage:
        """Return what the judge finds.

        Raises:
            OutOfTimeError: that was not over within so many seconds.
            WorkerError: the judge's process came to no end.
        """
        files, make = self.reference, partial(self.make, *finalist)
        kernel = SandboxSpec(self.path, files.device, files.settings, partial(_load, make), prepares=True)
        started = time.perf_counter()
        try:
            reason, detail = asked_again_if_killed(
                lambda: run_isolated(min(seconds, SECONDS), _judge, self, kernel, has_children=True)
            )
        except DeathError as death:
            if isinstance(death, HungError) and seconds < SECONDS:
                raise OutOfTimeError("the winner's last check was not over in time") from death
            raise WorkerError(f"the winner's last check failed: {death}; the same command tries it again") from death
        return Stage(NAME, not reason, time.perf_counter() - started, reason or detail)


# What follows runs in the judge's process.


def _judge(asked: ConfirmWinner, kernel: SandboxSpec) -> tuple[str, str]:
    """Why it is refused, empty where it is not; and what was asked, for people."""
    log, detail = StageLog(), ""
    with torch.no_grad(), Sandbox(asked.reference.original) as reference, Sandbox(kernel) as candidate:
        contender = RemoteContender(candidate, asked.exemptions)
        try:
            with refusals_kept(log, described):
                candidate.open()
                detail = _quick(asked, RemoteSource(reference, reference.open()), contender, log)
        except ReferenceSandboxError as error:
            return "", f"{_UNASKED}: the reference's process: {error}"
        except SandboxError as error:
            return f"{error}, {log.until}", ""
    refused = (f"{stage.name}: {stage.detail}" for stage in log.verdict(0.0).stages if not stage.passed)
    return next(refused, ""), detail


def _quick(asked: ConfirmWinner, source: RemoteSource, contender: RemoteContender, log: StageLog) -> str:
    """Put it through the quick battery; what was asked, for people."""
    try:
        bounds = {} if asked.small else source.bounds(asked.mode, asked.accuracy)
    except FAILURES as error:
        return f"{_UNASKED}: the reference does not run beside the worker: {described(error)}"
    for at in _at_sizes(source, asked.small):
        is_own = at is source
        if is_own and not asked.small and (reason := _no_room(asked)):
            return f"{_UNASKED}: this configuration serves no smaller size that tells answers apart, and {reason}"
        original = at.model(asked.mode)
        state = original.state()
        model = contender.model(at, asked.mode, state)
        if model.ready(at.inputs(0)) is not None:
            continue  # another configuration serves there
        # What rounding leaves depends on sizes: of smaller ones it says nothing.
        accuracy = asked.accuracy if is_own else Accuracy.TOLERANCE
        try:
            oracle = consult_reference(at, original, accuracy, Draw.fresh())
        except ReferenceRefusal as error:
            if is_own:
                return f"{_UNASKED}: beside the worker {error}"
            continue
        if oracle.degenerate and not is_own:
            continue  # answers there tell nothing: of groups of one feature each a normalisation makes zeros
        if not is_own:
            oracle = replace(oracle, cases=tuple(_eased(case, bounds) for case in oracle.cases))
        try:
            examine(Answers(at, oracle, asked.mode, original), contender, log, model, depth=None)
        except KernelFolderError as error:
            return f"{_UNASKED}: {error}"
        return _told(at.sizes, source.sizes)
    return f"{_UNASKED}: this configuration does not serve the reference's inputs"


def _no_room(asked: ConfirmWinner) -> str:
    """Why inputs and answers at the study's own sizes are too much to be passed on; empty where they are not."""
    where, needed = asked.reference.device, _COPIES * asked.bytes
    if where.type != "cuda" and asked.bytes > _MOST_BYTES_ON_CPU:
        return f"a call at its own sizes moves {asked.bytes / 1e9:.1f} GB"
    on_host = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = torch.cuda.mem_get_info(where)[0] if where.type == "cuda" else on_host
    return f"its own sizes need {needed / 1e9:.0f} GB of free memory" if needed > free else ""


def _at_sizes(source: RemoteSource, small: bool) -> Iterator[RemoteSource]:
    """The reference at its own sizes; before them, where they are not small, at reduced ones, the larger ones first."""
    reductions = [] if small else [reduce(source.sizes, cap) for cap in _CAPS for reduce in (capped, divided)]
    for sizes in {tuple(one.items()): one for one in reductions}.values():
        try:
            reduced = source.resized(sizes)
        except (*FAILURES, KernelFolderError):
            continue
        yield reduced
    yield source


def _eased(case: Case, bounds: Mapping[str, float]) -> Case:
    """The case at reduced sizes: what passes at the problem's own passes, and errors of few samples do."""
    output = {
        path: replace(
            one,
            allowance=max(one.allowance, bounds.get(path, 0.0), FEW_SAMPLES_MULTIPLE * one.own.max_relative),
        )
        for path, one in case.output.items()
    }
    return replace(case, output=output)


def _told(sizes: Sizes, own: Sizes) -> str:
    changed = {name: size for name, size in sizes.items() if own[name] != size}
    if not changed:
        return "right across the boundary, at its own sizes"
    return f"right across the boundary, at {', '.join(f'{name}={size:g}' for name, size in changed.items())}"
