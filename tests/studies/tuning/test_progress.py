"""What a running study says, from its first second to Ctrl-C."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from sample_kernel import WriteKernel

from tunebench.db.connection.database import open_database
from tunebench.studies.tuning.progress import StudyDisplay
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.summary import print_reports
from tunebench.studies.tuning.tune import Announcement, tune
from tunebench.tuner.study.outcome import Phase, Progress

pytestmark = pytest.mark.usefixtures("short_studies")


def test_the_first_line_needs_no_torch() -> None:
    code = "import sys, tunebench.studies.tuning.progress; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
def test_the_first_failure_of_each_kind_and_what_follows_the_search_are_said_when_they_happen(
    write_kernel: WriteKernel, tmp_path: Path, terminal: bool
) -> None:
    changes = {
        "y = torch.empty_like(x)": "y = torch.empty_like(x)\n"
        "        if plan['variety'] == 1: raise ValueError(f'block {plan[\"block_size\"]} [red]')\n"
        "        if plan['variety'] == 2: return y * 0"
    }
    shown = io.StringIO()
    study = resolve(request_of(str(write_kernel(model=changes).kernel.folder), {"trials": 12, "device": "cpu"}))
    display = StudyDisplay(Console(file=shown, force_terminal=terminal, width=300))
    with open_database(tmp_path / "a.db") as database, display:
        (report,) = tune(study, database, display)
    lines = [line for line in shown.getvalue().splitlines() if "/12 runtime: " in line or "/12 correctness: " in line]
    assert sum("ValueError: block" in line and "[red]" in line for line in lines) == 1
    assert sum("correctness" in line for line in lines) >= 1
    assert sum(report.outcome.refusals.values()) > len(lines)
    assert re.search(rf"{Phase.COMPARING} \(at most \d+ s\)", shown.getvalue())


@pytest.mark.slow
def test_ctrl_c_shows_the_best_so_far(
    write_kernel: WriteKernel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: Announcement) -> Callable[[Progress], None]:
        def show(progress: Progress) -> None:
            if progress.done == 3:
                raise KeyboardInterrupt

        return show

    study = resolve(request_of(str(write_kernel().kernel.folder), {"trials": 9, "device": "cpu"}))
    with open_database(tmp_path / "a.db") as database:
        (report,) = tune(study, database, interrupt)
    best = report.outcome.best
    assert best is not None and best.median_ms is not None and report.outcome.default_ms is not None
    print_reports([report])
    shown = capsys.readouterr().out
    assert re.search(f"best so far +{best.configuration}", shown)
    assert f"{report.outcome.default_ms / best.median_ms:.2f}× default; not confirmed by interleaved rounds" in shown
    assert re.search("interrupted +everything done is recorded", shown)
