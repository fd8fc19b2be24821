"""Tunes a model: finds its regions, tunes those that take most of its time, and compiles it with their kernels."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._inductor.virtualized import V

from tunebench.db.connection.database import Database, open_database
from tunebench.studies.inductor.backend import compile_with, region_or_none, tunebench
from tunebench.studies.inductor.known import evidence_for, model_in, problem_of, regions_folder
from tunebench.studies.inductor.region import Region, Value
from tunebench.studies.tuning.for_problem import resolve_problem
from tunebench.studies.tuning.targets import resolve_study
from tunebench.studies.tuning.tune import Reporter, tune
from tunebench.studies.writing.new.new_kernel import write_new
from tunebench.tuner.device import device_of
from tunebench.tuner.errors import TunebenchError, first_line
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Ratio
from tunebench.tuner.scratch import scratch
from tunebench.tuner.study.study import Ending

LEAST_SECONDS = 40.0
"""Least seconds of a region, its comparison with Inductor's own code included."""
_SEARCHED = 0.6
"""The share of a region's seconds that its study has; the comparison takes the rest."""
_MANY_TRIALS = 1_000_000
_FORWARDS = 3
_HELD_CYCLES = 100_000_000
"""Cycles that a GPU waits before a timed forward, so that the host has queued its kernels by then."""


@dataclass
class RegionReport:
    """A region of a model, and what its tuning came to.

    Attributes:
        calls: in a run of the model.
        seconds: that all of these take by Inductor's own code.
        share: of the model's time.
        ratio: of its kernel's speed to Inductor's own code, where the kernel serves.
        reason: why Inductor's own code does; empty where it does not.
    """

    region: Region
    ranges: tuple[tuple[float, float], ...]
    calls: int = 0
    seconds: float = 0.0
    share: float = 0.0
    ratio: Ratio | None = None
    reason: str = ""


@dataclass
class OptimizeReport:
    """What `optimize` found: the regions, those that take longest first."""

    regions: list[RegionReport] = field(default_factory=list)
    interrupted: bool = False


class Probe:
    """Measures the regions of a model that runs by Inductor's own code; compiled graphs call it around each region."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.ranges: dict[int, tuple[tuple[float, float], ...]] = {}
        self._marks: list[tuple[int, Any]] = []

    def begin(self, number: int, *tensors: torch.Tensor) -> None:
        """Note the ranges of a region's inputs in its first call, and the time."""
        if number not in self.ranges:
            self.ranges[number] = tuple(map(_range_of, tensors))
        self._mark(number)

    def end(self, number: int) -> None:
        """Note the time."""
        self._mark(number)

    def _mark(self, number: int) -> None:
        self._marks.append((number, _now(self.regions[number].device)))

    def seconds_of(self, run: Callable[[], object]) -> list[tuple[int, float]]:
        """Return the calls of regions in a run, in order, and what each took."""
        self._marks.clear()
        for region in self.regions[:1]:
            _hold(region.device)
        run()
        marks, self._marks = self._marks, []
        return [
            (number, _between(one, other)) for (number, one), (_, other) in zip(marks[::2], marks[1::2], strict=True)
        ]


_probe = Probe()
"""The one that is at work; compiled graphs find it by this name."""


def probe() -> Probe:
    """Return the probe that is at work."""
    return _probe


def _hold(device: torch.device) -> None:
    """Have a GPU wait while the host queues what comes next."""
    if device.type == "cuda":
        torch.cuda._sleep(_HELD_CYCLES)


def _now(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(one: Any, other: Any) -> float:
    """Return the seconds from one moment of `_now` to another."""
    if isinstance(one, float):
        return float(other - one)
    other.synchronize()
    return float(one.elapsed_time(other)) / 1000


def _range_of(tensor: torch.Tensor) -> tuple[float, float]:
    if tensor.numel() == 0:
        return 0.0, 0.0
    low, high = tensor.aminmax() if tensor.dtype is not torch.bool else (torch.tensor(0), torch.tensor(1))
    return float(low), float(high)


def _emit_probed(backend: Any, node: Any, own: Callable[[Any], None]) -> None:
    """Write Inductor's own code of a node, between two calls of the probe where it is a region."""
    region = region_or_none(node)
    if region is None:
        own(node)
        return
    number = len(_probe.regions)
    _probe.regions.append(region)
    wrapper = V.graph.wrapper_code
    wrapper.add_import_once(f"from {__name__} import probe")
    backend.flush()
    wrapper.writeline(f"probe().begin({', '.join([str(number), *(one.buffer for one in region.inputs)])})")
    own(node)
    backend.flush()
    wrapper.writeline(f"probe().end({number})")


def find_regions(model: Callable[..., Any], inputs: Sequence[Any]) -> list[RegionReport]:
    """Return a model's regions, equal ones once, those that take most of its time first."""
    global _probe  # noqa: PLW0603 - compiled graphs find it by its name
    _probe = Probe()

    def backend(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        return compile_with(_emit_probed, "probe", graph, given, {"fx_graph_cache": False})

    compiled = torch.compile(model, backend=backend)
    run = functools.partial(_run, compiled, inputs)
    run()
    calls = min((_probe.seconds_of(run) for _ in range(_FORWARDS)), key=lambda one: sum(took for _, took in one))
    whole = min(_whole(run) for _ in range(_FORWARDS))
    found: dict[str, RegionReport] = {}
    for number, took in calls:
        region = _probe.regions[number]
        report = found.setdefault(region.name, RegionReport(region, _probe.ranges[number]))
        report.calls += 1
        report.seconds += took
        report.share += took / max(whole, took)
    return sorted(found.values(), key=lambda report: -report.seconds)


def _run(model: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Call a model, and take the gradients of its parameters where they are wanted."""
    output = model(*inputs)
    leaves = torch.utils._pytree.tree_leaves(output)
    wanted = [one.sum() for one in leaves if isinstance(one, torch.Tensor) and one.requires_grad]
    module = getattr(model, "_orig_mod", model)
    parameters = [one for one in module.parameters() if one.requires_grad] if isinstance(module, nn.Module) else []
    if wanted and parameters:
        torch.autograd.grad(wanted, parameters, allow_unused=True)


def _whole(run: Callable[[], object]) -> float:
    """Return the seconds of a run, without the host's where the device is a GPU."""
    device = _probe.regions[0].device if _probe.regions else torch.device("cpu")
    _hold(device)
    began = _now(device)
    run()
    return _between(began, _now(device))


def optimize_regions(
    model: Callable[..., Any], inputs: Sequence[Any], seconds: float, database: Database, reporter: Reporter
) -> OptimizeReport:
    """Tune the regions of a model; those of which results are known already are not tuned again.

    Args:
        seconds: of all studies together.

    Raises:
        TunebenchError: the database cannot be written.
    """
    ends = time.monotonic() + seconds
    report = OptimizeReport(find_regions(model, inputs))
    waiting = sum(one.seconds for one in report.regions)
    for one in report.regions:
        left = ends - time.monotonic()
        budget = max(LEAST_SECONDS, left * one.seconds / waiting if waiting else left)
        waiting -= one.seconds
        try:
            is_over = _tune_region(one, budget if budget <= left and not report.interrupted else 0.0, database, reporter)
        except TunebenchError as error:
            one.reason = first_line(error)
            continue
        report.interrupted = report.interrupted or is_over
    return report


def _tune_region(one: RegionReport, seconds: float, database: Database, reporter: Reporter) -> bool:
    """Tune a region where nothing is known of it, and say what is known then; return whether it was interrupted.

    Args:
        seconds: of the study; 0 for none.
    """
    region, folder = one.region, regions_folder() / one.region.name
    evidence = evidence_for(region, folder) if folder.is_dir() else None
    is_interrupted = False
    if evidence is None and seconds:
        if not folder.is_dir() and (reason := _write(one, folder)):
            one.reason = reason
            return False
        model, device = model_in(folder), device_of(region.device)
        if (problem := problem_of(model, region, device)) is None:
            one.reason = "its kernel does not serve these inputs"
            return False
        is_interrupted = _study(folder, problem, region.device, seconds, database, reporter)
        evidence = evidence_for(region, folder)
    if evidence is None:
        one.reason = "no time was left to tune it" if not seconds else "no comparison was conclusive"
    elif evidence.is_faster:
        one.ratio = evidence.ratio
    else:
        one.reason = f"its kernel is not faster: {evidence.ratio}"
    return is_interrupted


def _study(
    folder: Path, problem: Problem, device: torch.device, seconds: float, database: Database, reporter: Reporter
) -> bool:
    """Search, and compare the winner with torch.compile's own code; return whether it was interrupted."""
    options = {"seconds": _SEARCHED * seconds, "trials": _MANY_TRIALS, "device": str(device)}
    (searched,) = tune(resolve_problem(str(folder), problem, options), database, reporter)
    if searched.outcome.ending is Ending.INTERRUPTED or searched.outcome.best is None:
        return searched.outcome.ending is Ending.INTERRUPTED
    (compared,) = tune(resolve_study(searched.study, {"compile": True}), database, reporter)
    return compared.outcome.ending is Ending.INTERRUPTED


def _write(one: RegionReport, folder: Path) -> str:
    """Write the folder of a region's kernel; return why there is none, else an empty text."""
    with scratch() as place:
        problem = place / "reference.py"
        problem.write_text(problem_text(one.region, one.ranges), encoding="utf-8")
        made = write_new(folder, problem)
    if made.block:
        return ""
    shutil.rmtree(folder)
    return f"no kernel: {made.reason}"


def problem_text(region: Region, ranges: Sequence[tuple[float, float]]) -> str:
    """Return a region as a problem in KernelBench's form.

    Args:
        ranges: of the values of its inputs, where it was met.
    """
    sizes = list(dict.fromkeys(size for one in region.inputs for size in one.shape if size > 1))
    names = {size: f"n{place}" for place, size in enumerate(sizes)}
    drawn = ",\n        ".join(_drawn(one, ends, names) for one, ends in zip(region.inputs, ranges, strict=True))
    numbers = "".join(f"{name} = {size}\n" for size, name in names.items())
    inputs = f"def get_inputs():\n    return [\n        {drawn},\n    ]\n"
    return f"{region.text}\n\n{numbers}\n\n{inputs}\n\ndef get_init_inputs():\n    return []\n"


def _drawn(value: Value, ends: tuple[float, float], names: Mapping[int, str]) -> str:
    """Return Python that draws a tensor like one that was met."""
    shape = "".join(f"{names.get(size, size)}, " for size in value.shape)
    if value.dtype is torch.bool:
        return f"torch.rand({shape.removesuffix(', ')}) < 0.5"
    if not value.dtype.is_floating_point:
        return f"torch.randint({int(ends[0])}, {int(ends[1]) + 1}, ({shape.removesuffix(' ')}), dtype={value.dtype})"
    dtype = "" if value.dtype is torch.float32 else f"dtype={value.dtype}"
    return f"torch.rand{'' if ends[0] >= 0 else 'n'}({(shape + dtype).removesuffix(', ')})"
