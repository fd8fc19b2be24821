"""`tune` begins with what earlier studies of the kernel have found, says so, and goes on as it began."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine
from rich.console import Console
from sample_kernel import SLOW_REFERENCE, WriteKernel
from sample_results import ENVIRONMENT, correct

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import StudyLog
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime.shipped import ShippedResult, shipped_studies, write_file
from tunebench.studies.tuning.progress import StudyDisplay
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.summary import print_reports, report_values
from tunebench.studies.tuning.tune import StudyReport, tune
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.study.outcome import Ending

pytestmark = pytest.mark.usefixtures("short_studies")


def tuned(folder: str, file: Path, shown: io.StringIO | None = None, **options: object) -> StudyReport:
    """The one report of a `tune` on the CPU."""
    request = request_of(folder, {"device": "cpu", **options})
    console = Console(file=shown or io.StringIO(), width=240)
    with open_database(file) as database, StudyDisplay(console) as display:
        (report,) = tune(resolve(request), database, display)
    return report


@pytest.mark.slow
def test_a_study_begins_with_what_is_known_and_goes_on_with_it(
    write_kernel: WriteKernel, tmp_path: Path, run: CommandLine
) -> None:
    folder, file = str(write_kernel(reference=SLOW_REFERENCE).kernel.folder), tmp_path / "results.db"
    first = tuned(folder, file, trials=6)
    assert first.warm_starts == (), "the first study of a kernel has nothing to begin with"

    shown = io.StringIO()
    second = tuned(folder, file, shown, trials=2, sizes={"rows": 32})
    assert second.warm_starts
    assert "warm start:" in shown.getvalue() and "n=2112 float32 x=64x33 on" in shown.getvalue()
    known = {json.dumps(dict(one.configuration)) for one in second.warm_starts}
    with open_database(file, read_only=True) as database:
        before = {json.dumps(dict(row.configuration)): row for row in trials(database, study_id=first.study)}
    assert known <= before.keys()
    assert all(before[one].median_ms is not None for one in known)

    # Another study in between changes nothing. The best of one so near comes first, and then the default.
    tuned(folder, file, trials=3, sizes={"rows": 8}, seed=5)
    again = tuned(folder, file, trials=2 + len(second.warm_starts), sizes={"rows": 32})
    assert again.study == second.study and again.warm_starts == second.warm_starts
    with open_database(file, read_only=True) as database:
        rows = sorted(trials(database, study_id=second.study), key=lambda row: row.number)
    wanted = [one.configuration for one in second.warm_starts]
    assert [row.configuration for row in rows[: len(wanted)]] == wanted
    fastest = min(before.values(), key=lambda row: row.median_ms or math.inf)
    assert wanted[0] == fastest.configuration
    assert {"block_size": 64, "blocks": 2, "variety": 0} in [dict(one) for one in wanted[:2]]

    tried = next(row for row in rows if row.configuration in [one.configuration for one in second.warm_starts])
    page = run("show", tried.trial_id, "--json", "--db", file).json
    assert page["warm_start_from"].startswith("trial ") and "n=2112" in page["warm_start_from"]
    assert "warm start from" in run("show", tried.trial_id, "--db", file).out

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_reports([again])
    assert f"configurations to begin with: {len(again.warm_starts)}\n" in printed.getvalue()
    assert report_values(again)["warm_starts"] == [
        {"configuration": dict(one.configuration), "origin": one.origin} for one in again.warm_starts
    ]


@pytest.mark.slow
def test_a_fresh_study_begins_with_nothing(write_kernel: WriteKernel, tmp_path: Path) -> None:
    folder, file = str(write_kernel().kernel.folder), tmp_path / "results.db"
    tuned(folder, file, trials=4)
    assert tuned(folder, file, trials=1, seed=1, fresh=True).warm_starts == ()
    assert tuned(folder, file, trials=2, seed=1).warm_starts == (), "it goes on as it began"
    assert tuned(folder, file, trials=1, seed=2, sampler="random").warm_starts == ()
    begun = tuned(folder, file, trials=1, seed=3)
    assert begun.warm_starts
    with pytest.raises(UserError, match=f"study {begun.study} has begun with .* leave out --fresh"):
        tuned(folder, file, trials=2, seed=3, fresh=True)


@pytest.mark.slow
def test_what_ships_with_a_kernel_is_a_warm_start(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory, cpu = write_kernel(), find_device("cpu")
    kernel = factory.kernel
    configuration: dict[str, bool | int | float | str] = {"block_size": 32, "blocks": 4, "variety": 2}
    result = ShippedResult({"n": 99}, "float32", {}, configuration, {}, 0.5, None, {})
    write_file(kernel, "another CPU", "another", [result])
    write_file(kernel, "a GPU", "sm_90", [result])
    (only,) = shipped_studies(kernel, Problem({"n": 99}), cpu)
    assert (only.distance, only.description) == (2.0, "n=99 float32 on another CPU")
    report = tuned(str(kernel.folder), tmp_path / "results.db", trials=2)
    assert [one.origin for one in report.warm_starts] == ["shipped, n=99 float32 on another CPU"]
    with open_database(tmp_path / "results.db", read_only=True) as database:
        assert dict(trials(database, limit=1)[0].configuration) == configuration


@pytest.mark.slow
def test_what_a_kernel_names_first_comes_before_the_default(write_kernel: WriteKernel, tmp_path: Path) -> None:
    named = 'Tunable("variety", (0, 1, 2)),\n    ),\n    starts=({"variety": 2}, {"variety": 7}, {"variety": 0})'
    factory = write_kernel(model={'Tunable("variety", (0, 1, 2)),\n    )': named})
    folder, file = str(factory.kernel.folder), tmp_path / "results.db"
    origins = [one.origin for one in tuned(folder, file, trials=2, fresh=True).warm_starts]
    assert origins == ["named by the kernel", "the default"]
    with open_database(file, read_only=True) as database:
        assert [row.configuration["variety"] for row in reversed(trials(database, limit=2))] == [2, 0]
    assert tuned(folder, file, trials=1, sampler="random").warm_starts == ()


@pytest.mark.slow
def test_a_study_that_may_stop_early_says_so_and_stays_stopped(write_kernel: WriteKernel, tmp_path: Path) -> None:
    many = {"(0, 1, 2)": str(tuple(range(30)))}
    folder, file = str(write_kernel(model=many).kernel.folder), tmp_path / "results.db"
    options = {"stop_early": True, "tunables": {"block_size": [64], "blocks": [1, 2, 4]}}
    first = tuned(folder, file, trials=1, **options)
    assert first.outcome.ending is Ending.BUDGET
    # Beside the default everything takes a second: there is nothing left to gain.
    with open_database(file) as database:
        log = StudyLog(database, first.study, ENVIRONMENT, 1)
        for number in range(1, 80):
            blocks, variety = (2, 1, 4)[number % 3], number // 3
            tried = Configuration({"block_size": 64, "blocks": blocks, "variety": variety})
            log.record(replace(correct(number, 1000.0), configuration=tried))
    report = tuned(folder, file, trials=600, **options)
    assert (report.outcome.trials, report.outcome.ending) == (80, Ending.SETTLED)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_reports([report])
    assert re.search("stopped early +after 80 trials", printed.getvalue())
    again = tuned(folder, file, trials=600, **options)
    assert (again.outcome.trials, again.outcome.ending) == (80, Ending.SETTLED)
