"""What the command line prints: tables for people, plain values for programs."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tunebench.db.queries.trials import BestRow, TrialRow
from tunebench.studies.tune import StudyReport
from tunebench.tuner.device import DeviceKind
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Baseline, Comparison, Ratio, TrialStatus
from tunebench.tuner.study.study import Ending

_ON_A_CPU = (
    "These times are a CPU's. The kernels are written for NVIDIA GPUs and built by g++ here, while the reference has "
    "the CPU's own libraries, which often win: 'slower' says so. What is searched, checked and recorded is as on a GPU."
)


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table whose columns fold rather than lose what does not fit."""
    heading = Text(printable(title)) if title else None
    table = Table(box=box.SIMPLE_HEAD, title=heading, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(Text(printable(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table, highlight=False)


def printable(text: str) -> str:
    """The text without what a terminal would obey: a database is anyone's, and ESC in it could rewrite the screen."""
    return "".join(
        character if character in "\n\t" or character.isprintable() else f"\\x{ord(character):02x}"
        for character in text
    )


def print_reports(console: Console, reports: Sequence[StudyReport]) -> None:
    """The summary of a `tune`: times, speed-ups with intervals, what was verified and what was refused."""
    columns = (
        *("kernel", "problem", "reference", "default", "best"),
        *("over reference", "over default", "of copy rate", "verified"),
    )
    rows = [_summary_row(report) for report in reports]
    print_table(console, columns, rows, "Medians of interleaved rounds; speed-ups with 99 % intervals")
    if any(report.device.kind is DeviceKind.CPU for report in reports):
        console.print(_ON_A_CPU + "\n", highlight=False)
    for report in reports:
        _print_notes(console, report)


def _summary_row(report: StudyReport) -> tuple[str, ...]:
    outcome = report.outcome
    comparison = outcome.comparison
    verified = sum(count for status, count in outcome.counts.items() if status.timed)
    counted = f"{verified} of {outcome.trials}"
    name = (report.kernel, str(report.problem))
    if comparison is None:
        return (*name, "", "", "", "", "", "", counted)
    times = [_milliseconds(comparison.medians_ms.get(key)) for key in (Baseline.REFERENCE, Baseline.DEFAULT, "best")]
    ratios = [_decided(comparison, baseline) for baseline in (Baseline.REFERENCE, Baseline.DEFAULT)]
    return (*name, *times, *ratios, _share(comparison.speedups.get(Baseline.COPY)), counted)


def _print_notes(console: Console, report: StudyReport) -> None:
    outcome = report.outcome
    lines = []
    if outcome.comparison is not None:
        lines.append(f"best: {outcome.comparison.best}")
        lines += [f"baseline {name} is missing: {reason}" for name, reason in outcome.comparison.missing.items()]
        if (ratio := outcome.comparison.speedups.get(Baseline.COMPILED)) is not None:
            lines.append(f"over torch.compile: {ratio}")
        if not outcome.comparison.trusted:
            lines.append(
                f"the rounds told two copies of one model apart ({outcome.comparison.control}): they decide nothing"
            )
    refused = {status: count for status, count in outcome.counts.items() if not status.timed}
    by_status = ", ".join(f"{status} {count}" for status, count in refused.items())
    lines.append(f"refused: {sum(refused.values())}" + (f" ({by_status})" if refused else ""))
    lines += [f"  {count}× {reason}" for reason, count in outcome.refusals.items()]
    if outcome.counts.get(TrialStatus.PRUNED):
        lines.append(f"given up early: {outcome.counts[TrialStatus.PRUNED]}, hopelessly slower than the best")
    if outcome.sanitizer and report.device.kind is DeviceKind.CUDA:
        lines.append(f"compute-sanitizer on the finalists: {outcome.sanitizer}")
    if report.carried:
        lines.append(f"carried over from earlier studies: {len(report.carried)}")
        lines += [f"  {one.origin}: {one.configuration}" for one in report.carried]
    if outcome.ending is Ending.SETTLED:
        lines.append(
            f"stopped early after {outcome.trials} trials: another one is expected to gain less than timing can tell"
        )
    if outcome.proven:
        lines.append(f"all {outcome.space_size} valid configurations were measured: the best is the best there is")
    if outcome.ending is Ending.INTERRUPTED:
        lines.append("interrupted: everything done is recorded, the same command goes on")
    console.print(f"{report.kernel} ({report.problem}), study {report.study}:", highlight=False, soft_wrap=True)
    for line in lines:
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.4g} ms"


def _ratio(value: Ratio | None) -> str:
    return "" if value is None else str(value)


def _decided(comparison: Comparison, baseline: Baseline) -> str:
    """A speed-up and what it says."""
    decision = comparison.decision(baseline)
    return "" if decision is None else f"{comparison.speedups[baseline]} {decision}"


def _share(value: Ratio | None) -> str:
    """A ratio as a percentage with its interval."""
    return "" if value is None else f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"


def report_values(report: StudyReport) -> dict[str, object]:
    """A study's report as plain values for `--json`."""
    outcome, comparison = report.outcome, report.outcome.comparison
    return {
        "kernel": report.kernel,
        "study": report.study,
        "problem": _problem_values(report.problem),
        "device": report.device.name,
        "architecture": report.device.architecture,
        "trials": outcome.trials,
        "valid_configurations": outcome.space_size,
        "counts": {status.value: count for status, count in outcome.counts.items()},
        "refusals": dict(outcome.refusals),
        "ending": outcome.ending.value,
        "proven": outcome.proven,
        "carried": [{"configuration": dict(one.configuration), "origin": one.origin} for one in report.carried],
        "seconds": outcome.seconds,
        "best": dict(comparison.best) if comparison else None,
        "medians_ms": dict(comparison.medians_ms) if comparison else None,
        "speedups": {
            baseline.value: {**(_ratio_values(ratio) or {}), "decision": comparison.decision(baseline)}
            for baseline, ratio in comparison.speedups.items()
        }
        if comparison
        else {},
        "missing": {baseline.value: reason for baseline, reason in (comparison.missing if comparison else {}).items()},
        "trusted": comparison.trusted if comparison else None,
    }


def _ratio_values(ratio: Ratio | None) -> dict[str, float] | None:
    if ratio is None:
        return None
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high, "rounds": ratio.rounds}


def print_best(console: Console, rows: Sequence[BestRow]) -> None:
    """The best trial of each kernel, problem and device."""
    columns = (
        *("kernel", "problem", "device", "compiler", "median"),
        *("over reference", "over default", "of copy rate", "configuration"),
    )
    print_table(
        console,
        columns,
        [
            (
                row.kernel,
                str(row.problem),
                row.device_name,
                row.compiler,
                _milliseconds(row.median_ms),
                _ratio(row.over_reference),
                _ratio(row.over_default),
                _share(row.over_copy),
                str(row.configuration),
            )
            for row in rows
        ],
    )


def print_trials(console: Console, rows: Sequence[TrialRow]) -> None:
    """Trials, one a row, with the first line of what went wrong."""
    columns = ("trial", "study", "kernel", "problem", "status", "median", "configuration", "message")
    print_table(
        console,
        columns,
        [
            (
                str(row.trial_id),
                f"{row.study_id}.{row.number}",
                row.kernel,
                str(row.problem),
                row.status.value,
                _milliseconds(row.median_ms),
                str(row.configuration),
                row.message.splitlines()[0][:200] if row.message else "",
            )
            for row in rows
        ],
    )


def row_values(row: TrialRow) -> dict[str, object]:
    """A trial as plain values for `--json`."""
    return {
        "trial": row.trial_id,
        "study": row.study_id,
        "number": row.number,
        "kernel": row.kernel,
        "source_digest": row.source_digest,
        "problem": _problem_values(row.problem),
        "device": row.device_name,
        "device_uuid": row.device_uuid,
        "architecture": row.architecture,
        "compiler": row.compiler,
        "sampler": row.sampler,
        "seed": row.seed,
        "status": row.status.value,
        "configuration": dict(row.configuration),
        "median_ms": row.median_ms,
        "low_ms": row.low_ms,
        "high_ms": row.high_ms,
        "regime": row.regime.value if row.regime else None,
        "recorded_at": row.recorded_at.isoformat(),
        "message": row.message,
        "confirmed": row.confirmed,
        "over_reference": _ratio_values(row.over_reference),
        "over_default": _ratio_values(row.over_default),
        "over_compiled": _ratio_values(row.over_compiled),
        "over_copy": _ratio_values(row.over_copy),
    }


def _problem_values(problem: Problem) -> dict[str, object]:
    return {"axes": dict(problem.axes), "dtype": problem.dtype, "options": dict(problem.options)}
