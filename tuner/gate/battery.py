"""The full battery: the one list of its stages, and how they are run."""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tunebench.tuner.gate import sanitizer
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.harness import Answers, Harness
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.gate.stages.call_sequences import held_results, later_calls, same_memory
from tunebench.tuner.gate.stages.inputs import distributions, non_finite
from tunebench.tuner.gate.stages.layouts import layouts
from tunebench.tuner.gate.stages.sizes import large, sizes
from tunebench.tuner.gate.stages.state import construction, mode, statistics, weights
from tunebench.tuner.gate.stages.streams import devices, graphs, streams
from tunebench.tuner.gate.stages.torch_features import autocast, compiled, dtypes, gradients
from tunebench.tuner.result import Verdict


class Depth(enum.StrEnum):
    """How much of the battery is run."""

    FINALIST = "finalist"
    """What one binary and the code around it can get wrong."""
    EVERYTHING = "everything"
    """Also what takes seconds and is the same for every configuration of a kernel."""


@dataclass(frozen=True)
class Step:
    """One stage of the full battery.

    Attributes:
        run: does it with the harness; raises `StageRefused`.
        depth: from which depth on it is run.
    """

    name: str
    run: Callable[[Harness], None]
    depth: Depth = Depth.FINALIST


STEPS: Sequence[Step] = (
    Step("construction", construction),
    Step("distributions", distributions),
    Step("not finite", non_finite),
    Step("layouts", layouts),
    Step("sizes", sizes),
    Step("same memory", same_memory),
    Step("later calls", later_calls),
    Step("held results", held_results),
    Step("weights", weights),
    Step("statistics", statistics),
    Step("mode", mode),
    Step("dtypes", dtypes),
    Step("gradients", gradients),
    Step("autocast", autocast),
    Step("streams", streams),
    Step("graphs", graphs),
    Step("devices", devices),
    Step("large", large, Depth.EVERYTHING),
    Step("torch.compile", compiled, Depth.EVERYTHING),
    Step(sanitizer.NAME, sanitizer.sanitized, Depth.EVERYTHING),
)
"""In the order they are run, cheap ones first."""


def proven(verdict: Verdict) -> bool:
    """Whether a verdict holds every stage that a finalist has to pass."""
    names = {stage.name for stage in verdict.stages}
    return all(step.name in names for step in STEPS if step.depth is Depth.FINALIST)


def run_battery(
    answers: Answers,
    contender: Contender,
    log: StageLog,
    depth: Depth,
    *,
    keep_going: bool = False,
) -> None:
    """Run the full battery; the first refusal ends it.

    Args:
        answers: of the reference, kept from one contender to the next.
        log: where each stage is noted.
        keep_going: run every stage, whatever the earlier ones found.
    """
    harness = Harness(answers, contender)
    with _small_scale(answers.device):
        for step in STEPS:
            if step.depth is Depth.EVERYTHING and depth is Depth.FINALIST:
                continue
            harness.begin(step.name)
            try:
                with log.stage(step.name) as details, torch.no_grad():
                    step.run(harness)
                    details.extend(harness.summary)
            except StageRefused:
                if not keep_going:
                    return


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
