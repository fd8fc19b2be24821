"""`tunebench sweep` on the CPU: what is done already, what fails, what is interrupted, and what ships."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine
from rich.console import Console
from sample_kernel import SLOW_REFERENCE, WriteKernel
from sample_results import ENVIRONMENT, STUDY, comparison, correct

import tunebench
from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime.selection import LEAST_OF_A_RANGE
from tunebench.kernels.runtime.shipped import file_for, read_file
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.sweep.ranges import find_ranges
from tunebench.studies.sweep.run import run_sweep
from tunebench.studies.sweep.tasks import State
from tunebench.studies.tuning.progress import SweepDisplay
from tunebench.studies.tuning.tune import Announcement
from tunebench.studies.writing.ship import ship
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.study.outcome import Progress

pytestmark = pytest.mark.usefixtures("short_studies")
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
REFUSED = {"def get_inputs():": "def get_inputs():\n    if rows == 7:\n        raise ValueError('seven')"}


def study_file(folder: Path, factory: type[TunedModule], rows: list[int], trials: int = 3) -> Path:
    file = folder / "sweep.toml"
    file.write_text(
        f'kernel = "{factory.kernel.folder}"\ndevice = "cpu"\nsampler = "random"\ntrials = {trials}\n'
        f"sizes = {{rows = {rows}}}\n",
        encoding="utf-8",
    )
    return file


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.mark.slow
def test_what_fails_is_told_and_passed_over_and_what_is_done_is_left_alone(
    write_kernel: WriteKernel, tmp_path: Path, ask: CommandLine
) -> None:
    factory, place = write_kernel(reference=REFUSED | SLOW_REFERENCE), tmp_path / "a.db"
    file = study_file(tmp_path, factory, [64, 7, 128])
    done = ask("sweep", file, "--db", place, "--json")
    assert done.code == 1
    states = [(one["state"], one["trials"]) for one in done.json["studies"]]
    assert states == [("tuned", 3), ("failed", 0), ("tuned", 3)]
    assert "seven" in done.json["studies"][1]["message"]
    assert [one["best"] is not None for one in done.json["studies"]] == [True, False, True]
    assert "1/3 weigh (" in done.err and " failed, " in done.err and "trials, " in done.err
    # On a busy machine final rounds may be inconclusive, and the same command takes them again.
    assert any("unconfirmed" not in ask("sweep", file, "--db", place).out for _ in range(9))
    again = ask("sweep", file, "--db", place)
    assert again.code == 1
    assert "2 done already, 1 failed; " in again.out
    assert "seven" in again.out and "0 trials in" in again.out


@pytest.mark.slow
def test_a_larger_budget_goes_on_and_a_limit_of_time_is_spent(write_kernel: WriteKernel, tmp_path: Path) -> None:
    file = study_file(tmp_path, write_kernel(reference=SLOW_REFERENCE), [64])
    with open_database(tmp_path / "a.db") as database:

        def ran(**options: object) -> tuple[State, int]:
            (one,) = run_sweep([file], options, database, SweepDisplay(Console(quiet=True))).results
            return one.state, one.trials

        assert ran() == (State.TUNED, 3)
        assert ran(trials=5) == (State.TUNED, 2)
        assert ran(trials=9, seconds=60.0) == (State.KEPT, 0)
        assert ran(trials=100) == (State.TUNED, 28)  # all that are valid
        assert ran(trials=200) == (State.KEPT, 0)


class Interrupts(SweepDisplay):
    """Ctrl-C in the second study, at its second trial."""

    begun = 0

    def __call__(self, announcement: Announcement) -> Callable[[Progress], None]:
        del announcement
        self.begun += 1

        def show(progress: Progress) -> None:
            if self.begun == 2 and progress.done == 2:
                raise KeyboardInterrupt

        return show


@pytest.mark.slow
@TWO_CORES
@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_sweep_goes_on_where_it_was(write_kernel: WriteKernel, tmp_path: Path, workers: int) -> None:
    file = study_file(tmp_path, write_kernel(), [32, 64, 128], trials=4)
    with open_database(tmp_path / "a.db") as database:
        first = run_sweep([file], {"workers": workers}, database, Interrupts(Console(quiet=True)))
        assert first.interrupted and not first.complete
        before = [row.trial_id for row in trials(database, limit=None)]
        assert 2 <= len(before) < 12
        second = run_sweep([file], {"workers": workers}, database, SweepDisplay(Console(quiet=True)))
        assert second.complete and not second.interrupted
        rows = trials(database, limit=None)
    assert {*before} <= {row.trial_id for row in rows}
    assert len(rows) == len({(row.study_id, row.configuration) for row in rows}) == 12
    assert second.trials == 12 - len(before)


@TWO_CORES
def test_an_interrupt_does_not_wait_for_what_another_device_is_at(write_kernel: WriteKernel, tmp_path: Path) -> None:
    class CtrlC(SweepDisplay):
        def __call__(self, announcement: Announcement) -> Callable[[Progress], None]:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return super().__call__(announcement)

    waited = tmp_path / "waited"
    forward = "    def forward(self, x):\n"
    # Naming the study's problem, on tensors without memory, does not wait: the study itself does.
    waits = "        if len(x) == 7 and type(x) is torch.Tensor:\n"
    waits += f"            __import__('time').sleep(600), open({str(waited)!r}, 'w')\n"
    file = study_file(tmp_path, write_kernel(reference={forward: forward + waits}), [64, 7])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is begun in the background ignores it
    try:
        with open_database(tmp_path / "a.db") as database:
            report = run_sweep([file], {"workers": 2}, database, CtrlC(Console(quiet=True)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert report.interrupted and {one.state for one in report.results} == {State.LEFT}
    assert not waited.exists()


@pytest.mark.slow
@TWO_CORES
def test_two_devices_share_the_queue_and_each_study_has_its_winner(write_kernel: WriteKernel, tmp_path: Path) -> None:
    file = study_file(tmp_path, write_kernel(reference=SLOW_REFERENCE), [16, 32, 64, 128])
    report = tunebench.sweep(file, workers=2, db=tmp_path / "a.db")
    assert report.complete and [one.trials for one in report.results] == [3] * 4
    assert report.device.multiprocessors == len(os.sched_getaffinity(0)) // 2
    assert all(one.best is not None for one in report.results)


FAST = Configuration({"block_size": 32, "blocks": 4, "variety": 1})
SLOW = Configuration({"block_size": 256, "blocks": 1, "variety": 0})
SMALL, LARGE = Problem({"n": 33 * 16}, "float32"), Problem({"n": 33 * 64}, "float32")


def record_winners(database: Database, kernel: Kernel) -> None:
    """Record that one configuration won at the small size and the other at the large one."""
    for problem, winner in ((SMALL, FAST), (LARGE, SLOW)):
        study = replace(
            STUDY, kernel=kernel.name, source_digest=kernel.digest, problem=problem, device=find_device("cpu")
        )
        log = open_study(database, study, ENVIRONMENT)
        log.record(replace(correct(0), configuration=winner))
        log.conclude(replace(comparison(0, 1.05), best=winner))


@pytest.mark.slow
def test_winners_are_tested_at_their_neighbours_and_what_ships_says_what_was_found(
    write_kernel: WriteKernel, tmp_path: Path
) -> None:
    kernel, cpu, told = write_kernel().kernel, find_device("cpu"), []
    with open_database(tmp_path / "a.db") as database:
        record_winners(database, kernel)
        tests = find_ranges(database, [kernel], {}, [cpu], told.append)
        asked = [(one.problem, one.neighbour, one.configuration) for one in tests]
        assert len(asked) == len(told) == 2
        assert (SMALL, LARGE, FAST) in asked and (LARGE, SMALL, SLOW) in asked
        ship(database, [kernel], cpu.name, tests)
        found = {one.problem: one for one in read_file(file_for(kernel, cpu.name)).results}
        for test in tests:
            result = found[test.problem]
            (shipped,) = (*result.range, *result.beyond)
            assert shipped.axes == test.neighbour.axes and bool(result.range) == test.holds
            if test.over_reference is not None:
                assert test.holds == (test.over_reference.low >= LEAST_OF_A_RANGE)
                assert shipped.over_reference == pytest.approx(
                    [test.over_reference.value, test.over_reference.low, test.over_reference.high], rel=1e-3
                )
        ship(database, [kernel], cpu.name)  # what is known of a winner that is still the same stays
        assert {one.problem: one for one in read_file(file_for(kernel, cpu.name)).results} == found


@pytest.mark.slow
def test_a_configuration_that_is_wrong_elsewhere_has_no_range(write_kernel: WriteKernel, tmp_path: Path) -> None:
    wrong = {"y[i] = x[i] * weight[0];": "y[i] = block_size == 32 && n > 1000 ? 0 : x[i] * weight[0];"}
    kernel, cpu = write_kernel(source=wrong).kernel, find_device("cpu")
    with open_database(tmp_path / "a.db") as database:
        record_winners(database, kernel)
        tests = {one.problem: one for one in find_ranges(database, [kernel], {}, [cpu], lambda _: None)}
        assert not tests[SMALL].holds and "is refused (correctness)" in tests[SMALL].message
        ship(database, [kernel], cpu.name, list(tests.values()))
    small = next(one for one in read_file(file_for(kernel, cpu.name)).results if one.problem == SMALL)
    assert (small.range, [one.over_reference for one in small.beyond]) == ([], [None])


def test_a_question_that_is_wrong_is_one_line(tmp_path: Path, ask: CommandLine) -> None:
    file = tmp_path / "a.toml"
    file.write_text('kernel = "scalar_mull"\n', encoding="utf-8")
    assert "scalar_mul" in ask("sweep", file, "--device", "cpu").error
    assert "cannot read it as TOML" in ask("sweep", tmp_path / "missing.toml").error
    assert "sweep on Ray first, then here to ship" in ask("sweep", file, "--executor", "ray", "--ship").error
