"""The output of a sweep when it ends: its winners as `best` lists them, and what became of the rest."""

from __future__ import annotations

from collections import Counter

from tunebench.studies.display.tables import BEST, row_values, values_of
from tunebench.studies.display.terminal import print_line
from tunebench.studies.sweep.run import SweepReport
from tunebench.studies.sweep.tasks import State, Swept
from tunebench.tuner.result import Decision

_DECIDED = {Decision.FASTER: "faster than the reference", Decision.TIE: "tied with it", Decision.SLOWER: "slower"}


def print_sweep(report: SweepReport) -> None:
    """Print the winners, what they won and lost, and what became of the rest."""
    winners = [one.best for one in report.results if one.best]
    print_line(f"Winners on {report.device.name}")
    BEST.table(winners, True)
    for one in report.results:
        if one.message:
            print_line(f"{one.kernel} ({one.about}) {one.state}: {one.message}")
    states, decisions = Counter(one.state for one in report.results), Counter(best.decision for best in winners)
    said = [f"{states[state]} {state}" for state in State if states[state]]
    won = [f"{decisions[decision]} {words}" for decision, words in _DECIDED.items()]
    if unconfirmed := decisions[None] + decisions[Decision.INCONCLUSIVE]:
        won.append(f"{unconfirmed} unconfirmed (the same command takes their final rounds again)")
    print_line(f"{', '.join(said)}; {', '.join(won)}; {report.trials} trials in {report.seconds:.0f} s")
    if report.interrupted:
        print_line("interrupted: everything done is recorded, the same command goes on")
    if report.shipments:
        ranges = sum(test.holds for test in report.tests)
        print_line(f"winners tried at neighbouring problems: {len(report.tests)}, proven not to lose there: {ranges}")
    for shipment in report.shipments:
        print_line(f"{shipment.kernel}: {shipment.results} results in {shipment.path}")


def sweep_values(report: SweepReport) -> dict[str, object]:
    """A sweep's report as plain values for `--json`."""
    return values_of(
        report,
        *("complete", "interrupted", "trials", "seconds"),
        device=report.device.name,
        architecture=report.device.architecture,
        studies=[_swept_values(one) for one in report.results],
        tests=[values_of(one, *vars(one), in_range=one.holds) for one in report.tests],
        shipped=[values_of(one, "kernel", "results", file=one.path) for one in report.shipments],
    )


def _swept_values(one: Swept) -> dict[str, object]:
    best = one.best
    names = ("kernel", "problem", "state", "message", "study", "trials", "seconds")
    return values_of(one, *names, decision=best and best.decision, best=best and row_values(best))
