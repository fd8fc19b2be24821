"""Tunes a model: finds its regions, tunes those that take most of its time, and says what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tunebench.db.connection.database import Database
from tunebench.studies.display.terminal import print_line, print_table
from tunebench.studies.inductor.backend import modes_options
from tunebench.studies.inductor.find import RegionInModel, find_regions, run_model
from tunebench.studies.inductor.known import Evidence, evidence_for, model_in, problem_of, regions_folder
from tunebench.studies.inductor.region import Region, Value
from tunebench.studies.tuning.for_problem import resolve_problem
from tunebench.studies.tuning.tune import Reporter, tune
from tunebench.studies.writing.loops.lower import UnloweredError
from tunebench.studies.writing.loops.write import write
from tunebench.studies.writing.new.draft import draft
from tunebench.studies.writing.new.trace import Traced, trace
from tunebench.studies.writing.new.write import model_text
from tunebench.tuner.errors import TunebenchError, first_line
from tunebench.tuner.reference import load_reference
from tunebench.tuner.result import Decision, Ratio
from tunebench.tuner.study.outcome import Ending
from tunebench.tuner.timing.torch_compile import apart, without_reports

LEAST_SECONDS = 25.0
"""Least seconds of a region, those in which torch compiles it included. With 60 each, most of a model's regions had no
time on an H200, and five out of six that had 30 were decided while torch took a third of them."""
_MANY_TRIALS = 1_000_000


@dataclass
class OptimizedRegion:
    """A region with what is known of it in the end.

    Attributes:
        evidence: of its kernel against Inductor's own code; None where there is none.
        reason: why there is none.
    """

    found: RegionInModel
    evidence: Evidence | None = None
    reason: str = ""


@dataclass
class OptimizeReport:
    """The regions of a model, those that take longest first.

    Attributes:
        whole: the speed of the whole model over that of Inductor's own code; None where no region has a kernel of ours.
    """

    regions: list[OptimizedRegion]
    interrupted: bool = False
    whole: Ratio | None = None

    @property
    def has_faster(self) -> bool:
        """Whether a region has a kernel of ours that is faster."""
        return any(one.evidence is not None and one.evidence.is_faster for one in self.regions)


class _NoKernelError(TunebenchError):
    """There is no kernel for a region; the message says why."""


def optimize_regions(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    seconds: float,
    database: Database,
    reporter: Reporter,
    mode: str | None = None,
) -> OptimizeReport:
    """Tune the regions of a model; one of which results are known is not tuned again.

    Args:
        seconds: of all studies together.
        mode: of `torch.compile`, in which the model will run.

    Raises:
        TunebenchError: the database cannot be written.
    """
    report = OptimizeReport([])
    found = _new_regions(report, [], model, inputs, mode)
    options = modes_options(mode)
    if seconds >= LEAST_SECONDS and options.get("max_autotune") and any(map(_is_unknown, found)):
        _learn_choices(model, inputs, options)
    ends = time.monotonic() + seconds
    while found:
        waiting = sum(one.found.seconds for one in found)
        for one in found:
            left = ends - time.monotonic()
            share = min(left, max(LEAST_SECONDS, left * one.found.seconds / waiting))
            waiting -= one.found.seconds
            try:
                one.evidence = evidence_for(one.found.region)
                if one.evidence is None and left >= LEAST_SECONDS and not report.interrupted:
                    one.reason = "its study was not conclusive"
                    report.interrupted = _tune(one.found, share, database, reporter)
                    one.evidence = evidence_for(one.found.region)
                else:
                    one.reason = "no time was left to tune it"
            except TunebenchError as error:
                one.reason = first_line(error)
        report.regions += found
        found = _new_regions(report, found, model, inputs, mode)
    report.regions.sort(key=lambda one: -one.found.seconds)
    return report


def _learn_choices(model: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Have max-autotune choose its code for the whole model, once and while nothing else runs.

    PyTorch keeps what it has measured: the study of each region then compares with the choice that the model has, and
    does not spend its seconds on making it again.
    """
    with without_reports():
        run_model(torch.compile(apart(model), options={**options, "triton.cudagraphs": False}), inputs)


def _is_unknown(one: OptimizedRegion) -> bool:
    """Whether a region would be tuned."""
    try:
        return evidence_for(one.found.region) is None
    except TunebenchError:
        return False


def _new_regions(
    report: OptimizeReport,
    latest: Sequence[OptimizedRegion],
    model: Callable[..., Any],
    inputs: Sequence[Any],
    mode: str | None,
) -> list[OptimizedRegion]:
    """Return regions that no report has: of a product that turned out to be slower the rest is a region of its own.

    Args:
        latest: those that have been tuned since regions were looked for.
    """
    lost = [one for one in latest if one.evidence is not None and not one.evidence.is_faster]
    if latest and not any(one.found.region.is_product for one in lost):
        return []
    known = {one.found.region.key for one in report.regions}
    return [OptimizedRegion(one) for one in find_regions(model, inputs, mode) if one.region.key not in known]


def _tune(found: RegionInModel, seconds: float, database: Database, reporter: Reporter) -> bool:
    """Tune a region, and compare the winner with torch.compile's own code; return whether it was interrupted.

    Raises:
        TunebenchError: there is no kernel for it, or it cannot be tuned.
    """
    region, folder = found.region, regions_folder() / found.region.name
    write_kernel(found, folder)
    problem = problem_of(model_in(folder), region)
    if problem is None:
        raise _NoKernelError("its kernel does not serve these inputs")
    options = {"seconds": seconds, "trials": _MANY_TRIALS, "device": str(region.device), "compile": True}
    (searched,) = tune(resolve_problem(str(folder), problem, options), database, reporter)
    outcome = searched.outcome
    if outcome.best is None and outcome.refusals:
        raise _NoKernelError(f"no configuration is right: {next(iter(outcome.refusals))}")
    return outcome.ending is Ending.INTERRUPTED


def write_kernel(found: RegionInModel, folder: Path) -> None:
    """Write the folder of a region's kernel, which serves all sizes, unless it is there.

    Raises:
        TunebenchError: there is no kernel for it.
    """
    if folder.is_dir():
        return
    text = problem_text(found.region, found.ranges)
    traced = trace(load_reference(folder / "reference.py", text=text))
    files = {"reference.py": text, **_files(folder.name, traced)}
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


def _files(name: str, traced: Traced) -> dict[str, str]:
    """The files of a region's kernel: a block's where it begins with a product or is attention, or else passes.

    Raises:
        TunebenchError: there is no kernel for it.
    """
    source = "a compiled model"
    for core in draft(traced, None).cores:
        if core.block in ("Linear", "Conv", "Attention") and core.is_whole:
            return {"model.py": model_text(name, traced, core, source)}
    try:
        written = write(name, traced.model, dict(zip(traced.names, traced.inputs, strict=True)), source)
    except UnloweredError as error:
        raise _NoKernelError(f"no kernel: {error}") from error
    return {f"{name}.cu": written.source, "model.py": written.model}


def values_of_report(report: OptimizeReport) -> list[dict[str, object]]:
    """Return a report as plain values, for programs."""
    return [
        {
            "region": one.found.region.name,
            "folder": str(regions_folder() / one.found.region.name),
            "source": one.found.region.source,
            "share": one.found.share,
            "calls": one.found.calls,
            "inductor_ms": 1e3 * one.found.seconds / one.found.calls,
            "ratio": None
            if one.evidence is None
            else [one.evidence.ratio.value, one.evidence.ratio.low, one.evidence.ratio.high],
            "is_served": one.evidence is not None and one.evidence.is_faster,
            "reason": "" if one.evidence else one.reason,
        }
        for one in report.regions
    ]


def print_report(report: OptimizeReport, *, verbose: bool = False) -> None:
    """Print a table of regions: share, times by Inductor's own code and by what serves now, and where they are."""
    columns = ("region", "share", "calls", "before", "after", "gain", "of the code at")
    rows = []
    for one in report.regions:
        found, evidence = one.found, one.evidence
        before = 1e3 * found.seconds / found.calls
        after = before / evidence.ratio.value if evidence and evidence.is_faster else before
        gain = one.reason if evidence is None else f"{evidence.ratio} {evidence.ratio.decision}"
        times = (f"{found.share:.1%}", str(found.calls), f"{before:.4g}", f"{after:.4g}")
        rows.append((found.region.name, *times, gain, found.region.source))
    if not rows:
        print_line("no regions: Inductor fuses nothing of this model, or knows no way to compile it")
        return
    title = "Regions of the model; ms of a call, before: by Inductor's own code, after: by what serves now"
    print_table(columns, rows, title, core=len(columns), verbose=verbose)
    if report.whole is not None:
        told = f"the whole model: {report.whole} {report.whole.decision} than by Inductor's own code"
        is_slower = report.whole.decision is Decision.SLOWER
        print_line(f"{told}{', which is what `optimize` returns' if is_slower else ''}")
    elif not report.has_faster:
        print_line("no region has a faster kernel of ours: the model's code is Inductor's own")


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
    shape = ", ".join(str(names.get(size, size)) for size in value.shape)
    shape = f"({shape},)" if len(value.shape) == 1 else f"({shape})"
    if value.dtype is torch.bool:
        return f"torch.rand({shape}) < 0.5"
    if not value.dtype.is_floating_point:
        return f"torch.randint({int(ends[0])}, {int(ends[1]) + 1}, {shape}, dtype={value.dtype})"
    dtype = "" if value.dtype is torch.float32 else f", dtype={value.dtype}"
    lies = f".to(memory_format=torch.{value.images})" if value.images not in ("", "contiguous_format") else ""
    return f"torch.rand{'' if ends[0] >= 0 else 'n'}({shape}{dtype}){lies}"
