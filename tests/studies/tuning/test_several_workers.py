"""Studies that evaluate several configurations at once, on CPU workers, and what becomes of lost workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_kernel import WriteKernel

from tunebench.db.connection.database import open_database
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.on_this_machine import alone, lanes_of
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import Announcement, Reporter, StudyReport, tune
from tunebench.tuner.device import Device, DeviceKind, find_device, require_one_model
from tunebench.tuner.errors import UserError
from tunebench.tuner.study.outcome import Ending, Progress

pytestmark = [
    pytest.mark.usefixtures("short_studies"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores"),
]
LAUNCH = "        blocks = plan"
TRIALS = 12


def study(
    factory: type[TunedModule], file: Path, announce: Reporter = lambda _: lambda _: None
) -> tuple[StudyReport, list[TrialRow]]:
    """A study with two workers: its report, and its trials by number."""
    options = {"device": "cpu", "workers": 2, "trials": TRIALS, "sampler": "random"}
    with open_database(file) as database:
        (report,) = tune(resolve(request_of(str(factory.kernel.folder), options)), database, announce)
        return report, sorted(trials(database, limit=None), key=lambda row: row.number)


@pytest.mark.slow
def test_two_workers_share_a_study_and_one_that_is_killed_costs_nothing(
    write_kernel: WriteKernel, tmp_path: Path
) -> None:
    marker, killed = tmp_path / "workers", []
    marker.touch()
    note = f"        open({str(marker)!r}, 'a').write(f'{{__import__(\"os\").getpid()}}\\n')\n"

    def workers() -> list[int]:
        return [int(line) for line in marker.read_text(encoding="utf-8").splitlines()]

    def kill_one(announcement: Announcement) -> Callable[[Progress], None]:
        assert announcement.slots == 2

        def show(progress: Progress) -> None:
            if progress.done >= 4 and not killed and len(set(workers())) == 2:
                killed.append(workers()[-1])
                os.kill(killed[0], signal.SIGKILL)

        return show

    report, rows = study(write_kernel(model={LAUNCH: note + LAUNCH}), tmp_path / "a.db", kill_one)
    assert (report.outcome.ending, report.outcome.lost, report.outcome.repeats) == (Ending.BUDGET, (), 0)
    assert [row.number for row in rows] == list(range(TRIALS))
    assert len({row.configuration for row in rows}) == TRIALS
    assert all(row.status.timed for row in rows)
    assert killed and workers().index(killed[0]) < len(workers()) - 1
    assert len(set(workers())) == 3  # two, and the one in the place of that which was killed
    assert report.device.multiprocessors == len(os.sched_getaffinity(0)) // 2
    assert report.outcome.comparison is not None


@pytest.mark.slow
def test_a_study_goes_on_without_a_worker_that_does_not_come_up(write_kernel: WriteKernel, tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    broken = f"    if __import__('os').sched_getaffinity(0) == {{{last}}}: __import__('os').abort()\n"
    inputs = "    return [torch.rand(rows"
    report, rows = study(write_kernel(reference={inputs: broken + inputs}), tmp_path / "a.db")
    assert report.outcome.lost == ("cpu: the worker did not come up: the process was killed by SIGABRT",)
    assert len({row.configuration for row in rows}) == TRIALS
    assert all(row.status.timed for row in rows)


@pytest.mark.slow
def test_an_interrupt_ends_what_runs_and_keeps_what_is_done(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory = write_kernel()

    def interrupt(_: Announcement) -> Callable[[Progress], None]:
        def show(progress: Progress) -> None:
            if progress.done == 3:
                raise KeyboardInterrupt

        return show

    report, rows = study(factory, tmp_path / "a.db", interrupt)
    done = [row.configuration for row in rows]
    assert (report.outcome.ending, report.outcome.lost, len(done)) == (Ending.INTERRUPTED, (), 3)
    report, rows = study(factory, tmp_path / "a.db")
    assert [row.configuration for row in rows][:3] == done
    assert len({row.configuration for row in rows}) == len(rows) == TRIALS


def test_what_cannot_be_evaluated_on_is_said_in_one_line(tmp_path: Path) -> None:
    for options, message in (
        ({"device": "cpu", "workers": 4096}, "4096 workers are more than the"),
        ({"devices": ["cpu", "cpu"]}, "cpu, cpu are named twice"),
        ({"devices": ["cpu"], "workers": 2}, "several workers are for the CPU"),
        ({"devices": ["cpu"], "device": "cpu"}, "give --device or --devices"),
    ):
        with pytest.raises(UserError, match=message), open_database(tmp_path / "results.db") as database:
            tune(resolve(request_of("scalar_mul", {"sizes": {"M": 4}, **options})), database)


CPU = find_device("cpu")
GPUS = [
    Device(DeviceKind.CUDA, index, name, "sm_90", f"GPU-{index}", 132, 150 << 30, 50 << 20)
    for index, name in enumerate(["H200", "H200", "H100"])
]


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with one hardware thread."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("tunebench.tuner.cores._threads_beside", lambda core, _: {core})


def test_gpus_of_two_models_make_no_one_study() -> None:
    require_one_model(GPUS[:2])
    with pytest.raises(UserError, match=r"tune --devices cuda:0,cuda:1 \(H200\), then --devices cuda:2 \(H100\)"):
        require_one_model(GPUS)


@pytest.mark.usefixtures("eight_cores")
def test_each_gpu_has_a_core_that_drives_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of("scalar_mul", {"device": "cpu"})
    first, second = lanes_of(request, GPUS[:2])[0].places
    assert (first.driving, first.cores) == ({0}, {0, 2, 3, 4, 5, 6, 7})
    assert (second.driving, second.cores) == ({1}, {1, 2, 3, 4, 5, 6, 7})
    assert alone(request, second.device).device == "cuda:1"
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert [(place.driving, place.cores) for place in lanes_of(request, GPUS[:2])[0].places] == [((), ())] * 2


@pytest.mark.usefixtures("eight_cores")
def test_devices_are_dealt_out_to_studies_that_run_at_once() -> None:
    request = request_of("scalar_mul", {"device": "cpu"})
    for studies, dealt in ((1, [[0, 1, 2]]), (2, [[0, 2], [1]]), (9, [[0], [1], [2]])):
        lanes = lanes_of(request, GPUS, studies)
        assert [[place.device.index for place in lane.places] for lane in lanes] == dealt
        assert {tuple(lane.driving) for lane in lanes} == {(0, 1, 2)}  # compilers keep off the others' as well
        assert sum(lane.share for lane in lanes) == pytest.approx(1.0)
    shares = lanes_of(request_of("scalar_mul", {"device": "cpu", "workers": 4}), [CPU], 2)
    assert [[sorted(place.cores) for place in lane.places] for lane in shares] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert {place.device.multiprocessors for lane in shares for place in lane.places} == {2}
