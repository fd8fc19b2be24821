"""`explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json
from tunebench.studies.request.text import MOST

if TYPE_CHECKING:
    from tunebench.studies.checking.explain import Explanation


@options_of("request.results:ExplainRequest")
def explain(
    trial: Annotated[int, typer.Argument(min=1, max=MOST, metavar="TRIAL", help="The trial's number.")],
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Say why a trial takes as long as it does: a GPU's counters, or else the compiler's figures and the roofline.

    Nsight Compute (ncu) reads the counters where it is installed and may; they are kept with the trial.
    """
    from tunebench.db.connection.database import open_database
    from tunebench.studies.checking.explain import explain as explain_trial
    from tunebench.studies.display.tables import values_of
    from tunebench.studies.display.trial_page import detail_values

    with open_database(db, read_only=True) as database:
        found = explain_trial(database, trial, **given)
    if as_json:
        explanation = values_of(found, "facts", "counters", "why_without", "reason")
        print_json(detail_values(found.details) | {"explanation": explanation})
    else:
        _print(found)


def _print(found: Explanation) -> None:
    from tunebench.studies.display.terminal import print_facts, print_line, print_table
    from tunebench.tuner.timing.counters import METRICS

    row = found.details.row
    print_facts(f"trial {row.trial_id}: {row.kernel} ({row.problem}) on {row.device_name}", list(found.facts.items()))
    if found.counters:
        rows = [
            (words, *(f"{one.values[name]:,.4g}" if name in one.values else "" for one in found.counters))
            for name, words in METRICS.items()
        ]
        print_table(("counter", *(one.kernel for one in found.counters)), rows)
    else:
        print_line(f"no counters: {found.why_without}")
    print_line(found.reason)
