"""The output of a sweep when it ends: a table for people, plain values for programs."""

from __future__ import annotations

from tunebench.studies.display.tables import (
    decided,
    milliseconds,
    over_reference,
    row_values,
    values_of,
)
from tunebench.studies.display.terminal import print_line, print_table
from tunebench.studies.sweep.run import SweepReport
from tunebench.studies.sweep.tasks import State, Swept
from tunebench.studies.writing.ship import RangeTest
from tunebench.tuner.result import Decision


def print_sweep(report: SweepReport) -> None:
    """The winners, what they won and lost, and what became of the rest."""
    columns = ("kernel", "problem", "state", "best", "over reference", "over default", "trials", "configuration")
    print_table(columns, [_cells(one) for one in report.results], f"Winners on {report.device.name}")
    for one in report.results:
        if one.message:
            print_line(f"{one.kernel} ({one.about}) {one.state}: {one.message}")
    counts = {state: sum(one.state is state for one in report.results) for state in State}
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    outcomes = [one.best.decision for one in report.results if one.best]
    decisions = ", ".join(
        f"{outcomes.count(decision)} {word}"
        for decision, word in (
            (Decision.FASTER, "faster than the reference"),
            (Decision.TIE, "tied with it"),
            (Decision.SLOWER, "slower"),
        )
    )
    if unconfirmed := sum(decision in (None, Decision.INCONCLUSIVE) for decision in outcomes):
        decisions += f", {unconfirmed} unconfirmed (the same command takes their final rounds again)"
    print_line(f"{said}; {decisions}; {report.trials} trials in {report.seconds:.0f} s")
    if report.interrupted:
        print_line("interrupted: everything done is recorded, the same command goes on")
    if report.shipments:
        ranges = sum(test.holds for test in report.tests)
        print_line(f"winners tried at neighbouring problems: {len(report.tests)}, proven not to lose there: {ranges}")
    for shipment in report.shipments:
        print_line(f"{shipment.kernel}: {shipment.results} results in {shipment.path}")


def _cells(one: Swept) -> tuple[str, ...]:
    best = one.best
    name, trials = (one.kernel, one.about, str(one.state)), str(one.trials)
    if best is None:
        return (*name, "", "", "", trials, "")
    ratios = (over_reference(best), decided(best.over_default, confirmed=best.confirmed))
    return (*name, milliseconds(best.time_ms), *ratios, trials, str(best.configuration))


def sweep_values(report: SweepReport) -> dict[str, object]:
    """A sweep's report as plain values for `--json`."""
    return values_of(
        report,
        *("complete", "interrupted", "trials", "seconds"),
        device=report.device.name,
        architecture=report.device.architecture,
        studies=[_swept_values(one) for one in report.results],
        tests=[_test_values(one) for one in report.tests],
        shipped=[values_of(one, "kernel", "results", file=one.path) for one in report.shipments],
    )


def _swept_values(one: Swept) -> dict[str, object]:
    best = one.best
    names = ("kernel", "problem", "state", "message", "study", "trials", "seconds")
    return values_of(one, *names, decision=best and best.decision, best=best and row_values(best))


def _test_values(test: RangeTest) -> dict[str, object]:
    names = ("kernel", "problem", "neighbour", "configuration", "over_reference", "message")
    return values_of(test, *names, in_range=test.holds)
