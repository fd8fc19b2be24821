"""`tunebench demo`: a recorded study is shown as it was, and the report of it is written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import CommandLine

from tunebench.studies.tuning.demo import play, recorded_study
from tunebench.studies.tuning.tune import Announcement
from tunebench.tuner.study.outcome import Progress


def test_a_recorded_study_plays_in_the_time_it_is_given() -> None:
    slept: list[float] = []
    seen: list[Progress] = []
    told: list[Announcement] = []

    def show(announcement: Announcement) -> Callable[[Progress], None]:
        told.append(announcement)
        return seen.append

    play(recorded_study(), 60.0, show, slept.append)
    assert [(one.kernel, one.device.name, one.space_size) for one in told] == [("gemm_scale_bn", "NVIDIA H200", 225)]
    assert [one.done for one in seen] == [*range(1, 226)]
    bests = [one.best_ms for one in seen if one.best_ms is not None]
    assert bests == sorted(bests, reverse=True) and bests[-1] < 0.7 < (seen[-1].default_ms or 0)
    assert any(one.failure for one in seen) and 0 < slept[0] < slept[-1] <= 60


@pytest.mark.slow
def test_the_command_leaves_a_report_and_nothing_else(
    run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("demo", "--seconds", "0")
    assert done.code == 0, done
    assert "4.42× faster" in done.out and "scalar_mul" in done.out and "next: tunebench doctor" in done.out
    assert [one.name for one in tmp_path.glob("*.html")] == ["tunebench-demo.html"]
    assert not list(tmp_path.glob("*.db"))
    assert "does not exist" in run("demo", "--output", str(tmp_path / "no" / "such.html")).error
