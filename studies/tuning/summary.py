"""The output of `tune` when it ends: a table for people, plain values for programs."""

from __future__ import annotations

from collections.abc import Sequence

from tunebench.studies.display.tables import eager_had, milliseconds, share, speedup_values, values_of
from tunebench.studies.display.terminal import print_paragraph, print_table, printable
from tunebench.studies.tuning.tune import StudyReport
from tunebench.tuner.device import DeviceKind
from tunebench.tuner.problem import told_apart
from tunebench.tuner.result import Baseline, Comparison, Decision, TrialStatus
from tunebench.tuner.settings import described
from tunebench.tuner.study.account import Spent
from tunebench.tuner.study.study import Ending

_SHORTEST = 0.005
"""Phases of fewer seconds are not printed."""

_ON_A_CPU = (
    "These times are a CPU's. The kernels are written for NVIDIA GPUs and built by g++ here, while the reference has "
    "the CPU's own libraries, which often win: 'slower' says so. What is searched, checked and recorded is as on a GPU."
)


def print_reports(reports: Sequence[StudyReport]) -> None:
    """The summary of a `tune`: times, speed-ups with intervals, what was verified and what was refused."""
    columns = (
        *("kernel", "problem", "reference", "default", "best"),
        *("over reference", "over default", "of copy rate", "verified"),
    )
    problems = told_apart((report.kernel, report.problem) for report in reports)
    rows = [_summary_row(report, problem) for report, problem in zip(reports, problems, strict=True)]
    had = eager_had(report.problem.options for report in reports)
    print_table(columns, rows, f"Medians of interleaved rounds; speed-ups with 99 % intervals; {had}")
    if any(report.device.kind is DeviceKind.CPU for report in reports):
        print_paragraph(_ON_A_CPU)
    for report in reports:
        _print_notes(report)


def _summary_row(report: StudyReport, problem: str) -> tuple[str, ...]:
    outcome = report.outcome
    comparison = outcome.comparison
    verified = sum(count for status, count in outcome.counts.items() if status.timed)
    counted = f"{verified} of {outcome.trials}"
    name = (report.kernel, problem)
    if comparison is None:
        return (*name, "", "", "", "", "", "", counted)
    times = [milliseconds(comparison.medians_ms.get(key)) for key in (Baseline.REFERENCE, Baseline.DEFAULT, "best")]
    ratios = [_decided(comparison, baseline) for baseline in (Baseline.REFERENCE, Baseline.DEFAULT)]
    return (*name, *times, *ratios, share(comparison.speedups.get(Baseline.COPY)), counted)


def _print_notes(report: StudyReport) -> None:
    outcome = report.outcome
    lines = [f"does not build for a GPU: {report.gpu_refusal}"] if report.gpu_refusal else []
    if outcome.comparison is not None:
        lines += _best_lines(outcome.comparison)
        lines += [f"baseline {name} is missing: {reason}" for name, reason in outcome.comparison.missing.items()]
        if (ratio := outcome.comparison.speedups.get(Baseline.COMPILED)) is not None:
            lines.append(f"over torch.compile: {ratio}")
    elif outcome.best is not None and outcome.best.median_ms is not None:
        gain = f", {outcome.default_ms / outcome.best.median_ms:.2f}× default" if outcome.default_ms else ""
        lines.append(f"best so far: {outcome.best.configuration}")
        lines.append(f"  {milliseconds(outcome.best.median_ms)}{gain}; not confirmed by interleaved rounds")
    refused = {status: count for status, count in outcome.counts.items() if not status.timed}
    by_status = ", ".join(f"{status} {count}" for status, count in refused.items())
    lines.append(f"refused: {sum(refused.values())}" + (f" ({by_status})" if refused else ""))
    lines += [f"  {count}× {reason}" for reason, count in outcome.refusals.items()]
    if outcome.counts.get(TrialStatus.PRUNED):
        lines.append(f"given up early: {outcome.counts[TrialStatus.PRUNED]}, hopelessly slower than the best")
    if outcome.sanitizer and report.device.kind is DeviceKind.CUDA:
        lines.append(f"compute-sanitizer on the finalists: {outcome.sanitizer}")
    if outcome.confirmed:
        lines.append(f"the winner: {outcome.confirmed}")
    lines += [f"went on without {text}" for text in outcome.lost]
    if report.warm_starts:
        lines.append(f"warm-start configurations from earlier studies: {len(report.warm_starts)}")
        lines += [f"  {one.origin}: {one.configuration}" for one in report.warm_starts]
    if outcome.ending is Ending.SETTLED:
        lines.append(
            f"stopped early after {outcome.trials} trials: another one is expected to gain less than timing can tell"
        )
    if outcome.proven:
        lines.append(f"all {outcome.space_size} valid configurations were measured: the best is the best there is")
    if outcome.ending is Ending.INTERRUPTED:
        lines.append("interrupted: everything done is recorded, the same command goes on")
    lines.append(_spent(report.spent))
    print(printable(f"{report.kernel} ({report.problem}), study {report.study}:"))
    for line in lines:
        print(printable(f"  {line}"))


def _best_lines(comparison: Comparison) -> list[str]:
    if comparison.conclusive:
        return [f"best: {comparison.best}"]
    reason = "their intervals are too wide"
    if not comparison.trusted:
        reason = f"they told two copies of one model apart ({comparison.control})"
    return [
        f"best: {comparison.best}, the fastest in the search, and not confirmed",
        f"the final rounds are inconclusive: {reason}; the same command takes them again",
    ]


def _spent(spent: Spent) -> str:
    """Where the time went, the longest first, and what ran beside it."""
    longest = sorted(spent.seconds.items(), key=lambda one: -one[1])
    told = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in longest if seconds >= _SHORTEST)
    shared = f"; evaluations by the share that each of {spent.slots} had" if spent.slots > 1 else ""
    beside = f"; beside it, compilers ran for {spent.compiling:.1f} s in {spent.builds} builds" if spent.builds else ""
    return f"{spent.whole:.1f} s: {told}{shared}{beside}"


def _decided(comparison: Comparison, baseline: Baseline) -> str:
    """A speed-up and what it says."""
    decision = comparison.decision(baseline)
    if decision is not None and not comparison.conclusive:
        return f"{comparison.speedups[baseline]} unconfirmed"
    if baseline is Baseline.REFERENCE and decision is Decision.SLOWER:
        return f"reference is faster: {comparison.speedups[baseline]}"
    return "" if decision is None else f"{comparison.speedups[baseline]} {decision}"


def report_values(report: StudyReport) -> dict[str, object]:
    """A study's report as plain values for `--json`."""
    outcome, comparison = report.outcome, report.outcome.comparison
    figures = ("trials", "counts", "refusals", "ending", "proven", "seconds", "lost")
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
