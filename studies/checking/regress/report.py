"""The results of `regress`: a table for people, one in Markdown for a pull request, plain values for programs."""

from __future__ import annotations

from collections.abc import Mapping

from tunebench.studies.checking.regress.comparison import Choice, Comparison, Outcome
from tunebench.studies.checking.regress.repository import Side
from tunebench.studies.checking.regress.run import KernelChange, RegressReport
from tunebench.studies.display.tables import milliseconds, values_of
from tunebench.studies.display.terminal import print_line, print_table, printable

_COLUMNS = ("kernel", "mode", "problem", "BASE", "HEAD", "HEAD is")


def print_report(report: RegressReport) -> None:
    """The table on standard output, and below it what has to be said of its rows."""
    rows = [tuple(_cells(change)) for change in report.changes]
    title = f"BASE {report.base}, HEAD {report.head}"
    if rows:
        print_table(_COLUMNS, rows, title)
    else:
        print_line(title)
    for line in _lines(report):
        print_line(line)


def markdown(report: RegressReport) -> str:
    """The same for a pull request."""
    lines = [f"### tunebench: {_escaped(str(report.base))} → {_escaped(str(report.head))}", ""]
    if report.changes:
        lines += [f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
        lines += [f"| {' | '.join(map(_escaped, _cells(change)))} |" for change in report.changes] + [""]
    lines += [f"- {_escaped(line)}" for line in _lines(report)]
    return "\n".join(lines) + "\n"


def report_values(report: RegressReport) -> dict[str, object]:
    """The same as plain values for `--json`."""
    return values_of(
        report,
        *("threshold", "passed", "unchanged"),
        **{
            side.lower(): values_of(one, "name", "commit", changed_files=one.changed)
            for side, one in zip(Side, (report.base, report.head), strict=True)
        },
        changes=[_change_values(change) for change in report.changes],
    )


def _change_values(change: KernelChange) -> dict[str, object]:
    found = change.comparison
    return values_of(
        change,
        *("kernel", "mode", "outcome", "ratio"),
        path=change.place,
        says=change.said,
        problem=found and found.problem,
        device=found and found.device,
        medians_ms={side.lower(): median for side, median in change.medians_ms.items()},
        takes=_takes(found) if found else [],
        configurations=found
        and {
            side.lower(): values_of(choice, "origin", values=choice.configuration)
            for side, choice in found.choices.items()
        },
    )


def _takes(found: Comparison) -> list[dict[str, object]]:
    return [
        {"control": control, "copied": side.lower(), "samples_ms": {name.lower(): one for name, one in samples.items()}}
        for side, control, samples in zip(Side, found.controls, found.takes, strict=True)
    ]


def _cells(change: KernelChange) -> list[str]:
    medians = change.medians_ms
    said = f"{change.ratio}, {_WORDS[change.outcome]}" if change.ratio else _WORDS[change.outcome]
    return [
        change.kernel,
        change.mode or "",
        str(change.comparison.problem) if change.comparison else "",
        milliseconds(medians.get(Side.BASE)),
        milliseconds(medians.get(Side.HEAD)),
        said,
    ]


_WORDS = {one: one.value for one in Outcome} | {Outcome.REGRESSION: "slower: a REGRESSION", Outcome.WRONG: "WRONG"}


def _lines(report: RegressReport) -> list[str]:
    """Return the notes on the rows, and the verdict on them all."""
    lines = []
    for change in report.changes:
        name = f"{change.kernel} ({change.mode})" if change.mode else change.kernel
        if change.said:
            lines.append(f"{name}: {change.said}")
        if change.comparison is not None:
            lines += [f"{name}: {line}" for line in _configurations(change.comparison.choices)]
    if report.unchanged:
        lines.append(f"the same in both revisions: {', '.join(report.unchanged)}")
    if not report.changes:
        lines.append("nothing to time: what runs is the same in both revisions")
    limit = f"{100 * report.threshold:g} %"
    failing = [one for one in report.changes if one.outcome in (Outcome.REGRESSION, Outcome.WRONG)]
    names = ", ".join(dict.fromkeys(one.kernel for one in failing))
    lines.append(f"FAILED: {names}" if failing else f"passed: nothing is slower by more than {limit}, nothing is wrong")
    unknown = [one.kernel for one in report.changes if one.outcome is Outcome.INCONCLUSIVE]
    if unknown:
        lines.append(f"inconclusive, so that nothing is known of: {', '.join(dict.fromkeys(unknown))}")
    return [printable(line) for line in lines]


def _configurations(choices: Mapping[Side, Choice]) -> list[str]:
    base, head = choices.values()
    if base.configuration == head.configuration:
        return [f"both with {head.configuration} ({'; '.join(dict.fromkeys([base.origin, head.origin]))})"]
    return [f"{side} with {one.configuration} ({one.origin})" for side, one in choices.items()]


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text
