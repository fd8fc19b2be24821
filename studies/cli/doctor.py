"""`doctor`."""

from __future__ import annotations

from tunebench.studies.cli.options import DatabaseOption, JsonOption
from tunebench.studies.cli.output import print_json


def doctor(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """What is on this machine: GPU, driver, compilers, database, and what will run where. Changes nothing."""
    from dataclasses import asdict

    from tunebench.studies.doctor import examine
    from tunebench.studies.terminal import print_table

    findings = examine(db)
    if as_json:
        print_json([asdict(finding) for finding in findings])
        return
    rows = [
        ("yes" if finding.works else "no", finding.subject, "\n".join(filter(None, (finding.detail, finding.remedy))))
        for finding in findings
    ]
    print_table(("works", "what", "detail"), rows)
