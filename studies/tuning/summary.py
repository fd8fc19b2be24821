"""The output of `tune` when it ends: a table for people, plain values for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tunebench.studies.display.tables import (
    decided,
    eager_had,
    interval,
    milliseconds,
    share,
    speedup_values,
    values_of,
)
from tunebench.studies.display.terminal import print_facts, print_paragraph, print_table
from tunebench.studies.tuning.tune import StudyReport
from tunebench.tuner.device import DeviceKind
from tunebench.tuner.problem import briefly
from tunebench.tuner.result import Baseline, Comparison, TrialStatus
from tunebench.tuner.settings import described
from tunebench.tuner.study.account import Spent
from tunebench.tuner.study.outcome import Ending

_SHORTEST = 0.005
"""Phases of fewer seconds are not printed."""
_MOST_PHASES = 3
"""Phases that are printed where not all are asked for."""

_ON_A_CPU = (
    "These times are a CPU's. The kernels are written for NVIDIA GPUs and built by g++ here, while the reference has "
    "the CPU's own libraries, which often win: 'slower' says so. What is searched, checked and recorded is as on a GPU."
)


def print_reports(reports: Sequence[StudyReport], *, verbose: bool = False) -> None:
    """Print the summary of a `tune`: times, speed-ups, what was verified and what was refused.

    Args:
        verbose: also where the time went, and where a study began.
    """
    columns = ("kernel", "problem", "reference", "best", "over reference")
    more = ("over torch.compile", "99 % interval", "over default", "verified", "of copy rate")
    problems = briefly((report.kernel, report.problem) for report in reports)
    rows = [_summary_row(report, problem) for report, problem in zip(reports, problems, strict=True)]
    title = f"Medians of interleaved rounds in ms; {eager_had(report.problem.options for report in reports)}"
    print_table((*columns, *more), rows, title, core=len(columns), verbose=verbose)
    print()
    if any(report.device.kind is DeviceKind.CPU for report in reports):
        print_paragraph(_ON_A_CPU)
    for report in reports:
        print_facts(f"{report.kernel} ({report.problem}), study {report.study}", [*_notes(report, verbose=verbose)])


def _summary_row(report: StudyReport, problem: str) -> tuple[str, ...]:
    outcome = report.outcome
    comparison = outcome.comparison
    verified = sum(count for status, count in outcome.counts.items() if status.timed)
    counted = f"{verified} of {outcome.trials}"
    if comparison is None:
        return (report.kernel, problem, "", "", "", "", "", "", counted, "")
    reference, best = (milliseconds(comparison.medians_ms.get(key), "") for key in (Baseline.REFERENCE, "best"))
    ratio = comparison.speedups.get(Baseline.REFERENCE)
    over, compiled, default = (
        decided(comparison.speedups.get(baseline), confirmed=comparison.conclusive)
        for baseline in (Baseline.REFERENCE, Baseline.COMPILED, Baseline.DEFAULT)
    )
    copy = share(comparison.speedups.get(Baseline.COPY))
    return (report.kernel, problem, reference, best, over, compiled, interval(ratio), default, counted, copy)


def _notes(report: StudyReport, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Names and values of what else there is to say of a study."""
    outcome, counts = report.outcome, report.outcome.counts
    if report.gpu_refusal:
        yield "GPU build", f"does not build for a GPU: {report.gpu_refusal}"
    if outcome.comparison is not None:
        yield from _of_comparison(outcome.comparison)
    elif outcome.best is not None and outcome.best.median_ms is not None:
        gain = f", {outcome.default_ms / outcome.best.median_ms:.2f}× default" if outcome.default_ms else ""
        found = f"{outcome.best.configuration}, {milliseconds(outcome.best.median_ms)}{gain}"
        yield "best so far", f"{found}; not confirmed by interleaved rounds"
    refused = {status: count for status, count in counts.items() if not status.timed}
    by_status = ", ".join(f"{status} {count}" for status, count in refused.items())
    yield "refused", f"{sum(refused.values())}" + (f" ({by_status})" if refused else "")
    for reason, count in outcome.refusals.items():
        yield f"{count}×", reason
    if outcome.left_out:
        yield "left out", f"{outcome.left_out} that round as refused ones do"
    if pruned := counts.get(TrialStatus.PRUNED):
        yield "given up early", f"{pruned}, hopelessly slower than the best"
    if outcome.sanitizer and report.device.kind is DeviceKind.CUDA:
        yield "sanitizer", f"compute-sanitizer on the winner: {outcome.sanitizer}"
    if outcome.confirmed:
        yield "the winner", outcome.confirmed
    if outcome.unasked:
        yield (
            "not asked",
            f"no time was left for {'; '.join(outcome.unasked)}: 'tunebench confirm {report.study}' asks it",
        )
    for text in outcome.lost:
        yield "lost", f"went on without {text}"
    if report.warm_starts:
        yield "warm start", f"configurations to begin with: {len(report.warm_starts)}"
    for one in report.warm_starts if verbose else ():
        yield one.origin, str(one.configuration)
    endings = {
        "stopped early": (
            outcome.ending is Ending.SETTLED,
            f"after {outcome.trials} trials: another one is expected to gain less than timing can tell",
        ),
        "proven": (
            outcome.proven,
            f"all {outcome.space_size} valid configurations were measured: the best is the best there is",
        ),
        "interrupted": (
            outcome.ending is Ending.INTERRUPTED,
            "everything done is recorded, the same command goes on",
        ),
    }
    yield from ((name, said) for name, (is_so, said) in endings.items() if is_so)
    yield "time", _spent(report.spent, verbose=verbose)


def _of_comparison(comparison: Comparison) -> Iterator[tuple[str, str]]:
    if comparison.conclusive:
        yield "best", str(comparison.best)
    else:
        reason = "their intervals are too wide"
        if not comparison.trusted:
            reason = f"they told two copies of one model apart ({comparison.control})"
        yield "best", f"{comparison.best}, the fastest in the search, and not confirmed"
        yield "inconclusive", f"the final rounds are: {reason}; the same command takes them again"
    for name, reason in comparison.missing.items():
        yield "missing", f"baseline {name}: {reason}"


def _spent(spent: Spent, *, verbose: bool) -> str:
    """Where the time went, the longest first, and what ran beside it."""
    longest = sorted(spent.seconds.items(), key=lambda one: -one[1])
    if not verbose:
        most = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in longest[:_MOST_PHASES] if seconds >= _SHORTEST)
        return f"{spent.whole:.1f} s: most in {most}" if most else f"{spent.whole:.1f} s"
    told = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in longest if seconds >= _SHORTEST)
    shared = f"; evaluations by the share that each of {spent.slots} had" if spent.slots > 1 else ""
    beside = f"; beside it, compilers ran for {spent.compiling:.1f} s in {spent.builds} builds" if spent.builds else ""
    return f"{spent.whole:.1f} s: {told}{shared}{beside}"


def report_values(report: StudyReport) -> dict[str, object]:
    """A study's report as plain values for `--json`."""
    outcome, comparison = report.outcome, report.outcome.comparison
    figures = ("trials", "counts", "refusals", "ending", "proven", "unasked", "seconds", "lost", "left_out")
    concluded = ("best", "medians_ms", "missing", "trusted", "conclusive")
    return {
        **values_of(report, "kernel", "study", "problem", gpu_refusal=report.gpu_refusal or None),
        "eager": described(report.problem.options),
        "device": report.device.name,
        "architecture": report.device.architecture,
        **values_of(outcome, *figures, valid_configurations=outcome.space_size),
        "warm_starts": [values_of(one, "configuration", "origin") for one in report.warm_starts],
        "spent": values_of(report.spent, "whole", "slots", "compiling", "builds", phases=report.spent.seconds),
        **(values_of(comparison, *concluded) if comparison else {**dict.fromkeys(concluded), "missing": {}}),
        "speedups": speedup_values(comparison) if comparison else {},
    }
