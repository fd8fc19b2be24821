"""A report of a database from anyone: its text runs nothing, and its absurd figures are refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import Chromium, running_chromium
from html_outline import Outline

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.studies.display.report.gather import gather
from tunebench.studies.display.report.page import render, write
from tunebench.tuner.build import Build, CompilerName
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.environment import current_environment
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import (
    Baseline,
    CacheRegime,
    Comparison,
    Measurement,
    Ratio,
    TrialResult,
    TrialStatus,
    Verdict,
)
from tunebench.tuner.study.history import StudyDescription


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with running_chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


def record_hostile_study(database: Database, kernel: str = HOSTILE) -> None:
    """A study in which every text is an attack."""
    device = replace(find_device("cpu"), name=HOSTILE, uuid=HOSTILE)
    environment = replace(current_environment(device, HOSTILE), host=HOSTILE, torch=HOSTILE)
    description = StudyDescription(
        kernel=kernel,
        source_digest=HOSTILE,
        space_digest="",
        problem=Problem({HOSTILE: 3}, HOSTILE, {HOSTILE: HOSTILE}),
        device=device,
        compiler=CompilerName.CPU,
        sampler=HOSTILE,
        seed=0,
    )
    log = open_study(database, description, environment)
    verdict = Verdict(passed=True, stages=(), tolerance=1e-4)
    build = Build("v", CompilerName.CPU, HOSTILE, b"", HOSTILE, {}, 0.1, False)
    values = (HOSTILE, "%{x}<b>", "<a href='javascript:window.hacked=3'>here</a>")
    for number in range(12):
        configuration = Configuration({HOSTILE: values[number % 3], "<b>&amp;": number % 4, "only": number})
        if number == 5:
            log.record(TrialResult(configuration, TrialStatus.COMPILE, message=HOSTILE))
            continue
        median = 1.0 + number / 10
        measured = Measurement((median,) * 3, median, median, median, CacheRegime.WARM, HOSTILE)
        log.record(TrialResult(configuration, TrialStatus.CORRECT, build, verdict, measured))
    samples = {"best": (1.0, 1.1), "reference": (2.0, 2.1), HOSTILE: (3.0, 3.1)}
    log.conclude(
        Comparison(
            best=Configuration({HOSTILE: HOSTILE, "<b>&amp;": 0, "only": 0}),
            medians_ms={name: values[0] for name, values in samples.items()},
            samples_ms=samples,
            speedups={Baseline.REFERENCE: Ratio(2.0, 1.9, 2.1, 2, 0.95)},
        )
    )


@pytest.mark.slow
def test_text_from_a_database_runs_nothing(chromium: Chromium, tmp_path: Path) -> None:
    with open_database(tmp_path / "hostile.db") as database:
        record_hostile_study(database)
        html = render(gather(database))
    outline = Outline(html)
    assert {tag for tag, _ in outline.elements} & {"img", "b"} == set()
    assert len([a for a, _ in outline.all("script") if "type" not in a]) == 2
    write(html, tmp_path / "report.html")
    opened = chromium.open(tmp_path / "report.html")
    assert set(opened.draw_all(400)) == {"drawn"}
    assert opened.ask("typeof window.hacked") == "undefined"
    assert opened.ask("document.querySelectorAll('.plot a, img').length") == 0
    assert opened.ask("document.documentElement.scrollWidth") == 400
    assert opened.ask("document.querySelector('details h2').textContent.includes('<script>window.hacked')") is True
    assert opened.complaints() == []


@pytest.mark.slow
@pytest.mark.parametrize("median", [1e300, 1e-300])
def test_absurd_times_are_refused(tmp_path: Path, median: float) -> None:
    with open_database(tmp_path / "a.db") as database:
        device = find_device("cpu")
        description = StudyDescription("k", "s", "", Problem({"n": 1}), device, CompilerName.CPU, "gp", 0)
        log = open_study(database, description, current_environment(device, "g++"))
        measured = Measurement((median,), median, median, median, CacheRegime.WARM, "clock")
        verdict, build = Verdict(True, (), 1e-4), Build("v", CompilerName.CPU, "g++", b"", "", {}, 0.1, False)
        log.record(TrialResult(Configuration({"a": 1}), TrialStatus.CORRECT, build, verdict, measured))
        with pytest.raises(DatabaseError, match=r"study 1 holds .* as a time"):
            gather(database)


def test_a_kernels_name_in_a_database_is_never_taken_for_a_folder(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "model.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'sprung')!r}).touch()", encoding="utf-8"
    )
    with open_database(tmp_path / "hostile.db") as database:
        record_hostile_study(database, kernel=str(trap))
        for targets in ([], [str(trap)]):
            (study,) = gather(database, targets).studies
            assert study.work is None and "does not ship" in study.work_note
    assert not (tmp_path / "sprung").exists()
