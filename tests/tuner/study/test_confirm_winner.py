"""The winner of a study is judged once more across the boundary, where the kernel's own code cannot reach."""

from pathlib import Path

import pytest
from sample_kernel import WriteKernel

from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import StudyReport, tune
from tunebench.tuner.result import TrialStatus
from tunebench.tuner.study.confirm_winner import MOST_BYTES

PATCHED_JUDGE = """import multiprocessing
import torch
if multiprocessing.parent_process() is not None:
    import tunebench.tuner.gate.harness as harness, tunebench.tuner.gate.quick as quick
    import tunebench.tuner.gate.stages.callers as callers
    from tunebench.tuner.result import ErrorFigures
    harness.judge_values = quick.judge_values = lambda *_, **__: ErrorFigures(0.0, 0.0, 0.0, 0.0, 0.0)
    callers._Answer.judge = lambda *_: None
"""


def study(factory: type[TunedModule], folder: Path, trials_: int) -> tuple[StudyReport, list[tuple[TrialStatus, str]]]:
    """What a study reports, and its rows' statuses and messages."""
    options = {"device": "cpu", "sampler": "exhaustive", "trials": trials_, "sizes": {"rows": 300}}
    with open_database(folder / "results.db") as database:
        (report,) = tune(resolve(request_of(str(factory.kernel.folder), options)), database)
        return report, [(row.status, row.message) for row in trials(database, limit=None)]


@pytest.mark.slow
def test_a_kernel_that_patches_the_judge_wins_nothing(write_kernel: WriteKernel, tmp_path: Path) -> None:
    wrong = {"y[i] = x[i] * weight[0];": "y[i] = 1.5f * x[i] * weight[0];"}
    report, rows = study(write_kernel(source=wrong, model={"import torch\n": PATCHED_JUDGE}), tmp_path, 1)
    ((status, message),) = rows
    assert status is TrialStatus.CORRECTNESS and report.outcome.comparison is None
    assert message.startswith("refused late by boundary: values, draw "), message


@pytest.mark.slow
@pytest.mark.parametrize(("most_bytes", "sizes"), [(MOST_BYTES, "its own sizes"), (1, "rows=256")])
def test_a_sound_winner_is_right_there_too(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int, sizes: str
) -> None:
    monkeypatch.setattr("tunebench.studies.tuning.tune.MOST_BYTES", most_bytes)
    report, rows = study(write_kernel(), tmp_path, 2)
    assert report.outcome.comparison is not None and [status.timed for status, _ in rows] == [True, True]
    assert report.outcome.confirmed == f"right across the boundary, at {sizes}"


@pytest.mark.slow
def test_a_configuration_that_serves_no_smaller_size_is_asked_at_its_own(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunebench.studies.tuning.tune.MOST_BYTES", 1)
    large = {"constraints=(": "constraints=(Constraint('large', lambda problem: problem.axes['n'] >= 9000),"}
    report, rows = study(write_kernel(model=large), tmp_path, 1)
    assert report.outcome.confirmed == "right across the boundary, at its own sizes", rows


@pytest.mark.slow
def test_where_reduced_sizes_tell_nothing_others_are_asked(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunebench.studies.tuning.tune.MOST_BYTES", 1)
    grouped = {
        "columns = 33": "columns = 33\ngroups = 257",
        "__init__(self)": "__init__(self, ratio)",
        "torch.rand(1) + 0.5": "(torch.rand(1) + 0.5) * (ratio > 1)",
        "return []": "return [rows / groups]",
    }
    report, _ = study(write_kernel(reference=grouped), tmp_path, 1)
    assert report.outcome.confirmed == "right across the boundary, at rows=150, columns=16, groups=128"
