"""Variants that crash, hang or are killed: rows in the database, and a study that goes on in a new worker."""

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_kernel import WriteKernel

from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.resolved import make_evaluator, resolve
from tunebench.studies.tuning.study_file import StudyRequest, request_of
from tunebench.studies.tuning.tune import tune
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.device_lock import DeviceLock
from tunebench.tuner.errors import OutOfTimeError, UserError, WorkerError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Baseline, Stage, TrialResult, TrialStatus
from tunebench.tuner.study import plan
from tunebench.tuner.study.evaluate import NOBODY, Finalist, Leaders, LocalEvaluator
from tunebench.tuner.study.worker import EVALUATE_SECONDS, WorkerEvaluator

pytestmark = pytest.mark.usefixtures("short_studies")

CPU = find_device("cpu")
WEIGH = "y[i] = x[i] * weight[0];"
CRASH = "if (variety == 1) { *reinterpret_cast<volatile int*>(variety) = 0; } " + WEIGH
HANG = "for (volatile int spin = 0; variety == 1;) { spin = spin; } " + WEIGH


def study(factory: type[TunedModule], folder: Path, **options: object) -> dict[object, list[TrialStatus]]:
    """The statuses that an exhaustive study ends with, by the value of `variety`."""
    request = request_of(str(factory.kernel.folder), {"device": "cpu", "sampler": "exhaustive", **options})
    with open_database(folder / "results.db") as database:
        tune(resolve(request), database)
        found: dict[object, list[TrialStatus]] = {}
        for row in trials(database, limit=None):
            found.setdefault(row.configuration["variety"], []).append(row.status)
    return found


def built(evaluator: WorkerEvaluator, factory: type[TunedModule], number: int) -> Finalist:
    space = factory.kernel.space.enumerate(evaluator.problem, CPU)
    variant = factory.kernel.variant(space[number], evaluator.problem, CPU.architecture)
    return Finalist(space[number], BuildCache().build(compiler_for(CPU), variant))


def evaluate(
    evaluator: WorkerEvaluator, factory: type[TunedModule], number: int, leaders: Leaders = NOBODY
) -> TrialResult:
    return evaluator.evaluate(*built(evaluator, factory, number), leaders)


@pytest.fixture
def start() -> object:
    """Starts worker evaluators and ends them with the test."""
    started: list[WorkerEvaluator] = []

    def begin(factory: type[TunedModule]) -> WorkerEvaluator:
        request = request_of(str(factory.kernel.folder), {"device": "cpu"})
        started.append(WorkerEvaluator(functools.partial(make_evaluator, request, Mode.EVAL)))
        return started[-1]

    yield begin
    for evaluator in started:
        evaluator.close()


Start = Callable[[type[TunedModule]], WorkerEvaluator]


def test_a_worker_has_its_device_for_itself_while_it_is_asked(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNEBENCH_LOCKS", str(tmp_path / "locks"))
    lock = DeviceLock("GPU-1", "someone's study")
    lock.take(pytest.fail)
    factory, said = write_kernel(), ""

    started: list[WorkerEvaluator] = []
    request = request_of(str(factory.kernel.folder), {"device": "cpu"})
    make = functools.partial(make_evaluator, request, Mode.EVAL)
    thread = threading.Thread(target=lambda: started.append(WorkerEvaluator(make, device_lock="GPU-1")))
    thread.start()
    deadline = time.monotonic() + 60
    while "waiting for GPU-1" not in said and time.monotonic() < deadline:
        time.sleep(0.05)
        said += capfd.readouterr().err
    assert f"process {os.getpid()} on " in said and "someone's study works on it" in said
    assert not started
    lock.release()
    thread.join(60)
    (evaluator,) = started
    lock.take(pytest.fail)  # between its questions it is free
    lock.release()
    assert evaluate(evaluator, factory, 0).status.timed
    evaluator.close()


def test_a_worker_tells_its_problem_while_it_gets_ready(write_kernel: WriteKernel) -> None:
    request = request_of(str(write_kernel().kernel.folder), {"device": "cpu"})
    told: list[tuple[Problem, Device]] = []
    make = functools.partial(make_evaluator, request, Mode.EVAL)
    evaluator = WorkerEvaluator(make, foresee=lambda problem, device: told.append((problem, device)))
    evaluator.close()
    assert told == [(evaluator.problem, evaluator.device)]


@pytest.mark.slow
def test_a_worker_comes_up_while_nothing_is_asked_of_it(write_kernel: WriteKernel, start: Start) -> None:
    factory = write_kernel()
    first = start(factory)
    request = request_of(str(factory.kernel.folder), {"device": "cpu"})
    make = functools.partial(make_evaluator, request, Mode.EVAL)
    for is_awaited in (True, False):
        evaluator = WorkerEvaluator(make, known=(first.problem, CPU))
        assert not evaluator.process.alive
        evaluator.come_up()
        deadline = time.monotonic() + 60
        while not evaluator.prepared and is_awaited and time.monotonic() < deadline:
            time.sleep(0.02)
        assert bool(evaluator.prepared) or not is_awaited
        result = evaluate(evaluator, factory, 0)
        assert result.status.timed and evaluator.prepared
        if is_awaited:
            assert "restart" not in result.seconds
        evaluator.close()
        assert not evaluator.process.alive


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.2])
def test_a_worker_that_is_closed_while_it_comes_up_is_gone(
    write_kernel: WriteKernel, start: Start, seconds: float
) -> None:
    factory = write_kernel()
    request = request_of(str(factory.kernel.folder), {"device": "cpu"})
    make = functools.partial(make_evaluator, request, Mode.EVAL)
    evaluator = WorkerEvaluator(make, known=(start(factory).problem, CPU))
    evaluator.come_up()
    time.sleep(seconds)
    evaluator.close()
    for thread in threading.enumerate():
        if thread.name == "come up":
            thread.join(60)
            assert not thread.is_alive()
    assert not evaluator.process.alive


@pytest.mark.slow
def test_a_third_of_all_variants_crashes_and_the_study_ends(write_kernel: WriteKernel, tmp_path: Path) -> None:
    found = study(write_kernel(source={WEIGH: CRASH}), tmp_path)
    assert set(found[1]) == {TrialStatus.RUNTIME}
    assert all(status.timed for variety in (0, 2) for status in found[variety])
    assert [len(found[variety]) for variety in (0, 1, 2)] == [11, 11, 11]


def test_a_crash_says_how_the_worker_died(write_kernel: WriteKernel, start: Start) -> None:
    factory = write_kernel(source={WEIGH: CRASH})
    evaluator = start(factory)
    died = evaluate(evaluator, factory, 1)
    assert died.status is TrialStatus.RUNTIME
    assert died.message == "the process was killed by SIGSEGV"
    assert evaluate(evaluator, factory, 0).status.timed


@pytest.mark.slow
def test_an_endless_loop_is_killed_at_its_deadline(
    write_kernel: WriteKernel, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunebench.tuner.study.worker.EVALUATE_SECONDS", 3.0)
    factory = write_kernel(source={WEIGH: HANG})
    evaluator = start(factory)
    hung = evaluate(evaluator, factory, 1)
    assert hung.status is TrialStatus.TIMEOUT
    assert "killed" in hung.message
    # On a busy machine, what is right may take longer than that, too.
    monkeypatch.setattr("tunebench.tuner.study.worker.EVALUATE_SECONDS", EVALUATE_SECONDS)
    assert evaluate(evaluator, factory, 0).status.timed


@pytest.mark.slow
def test_what_is_not_over_when_the_study_is_is_let_go_of(write_kernel: WriteKernel, start: Start) -> None:
    factory = write_kernel(source={WEIGH: HANG})
    evaluator = start(factory)
    with pytest.raises(OutOfTimeError, match="the study's time was over before this variant was"):
        evaluate(evaluator, factory, 1, Leaders(seconds=0.5))
    assert evaluate(evaluator, factory, 0, Leaders(seconds=EVALUATE_SECONDS)).status.timed


def made_dawdling(request: StudyRequest) -> LocalEvaluator:
    """An evaluator that takes its time to prepare what compute-sanitizer would watch."""
    evaluator = make_evaluator(request, Mode.EVAL)

    def sanitize(_finalist: Finalist, _seconds: float) -> Stage:
        time.sleep(20)
        return Stage("sanitizer", True, 20.0)

    evaluator.sanitize = sanitize  # type: ignore[method-assign, assignment]
    return evaluator


def test_what_the_sanitizer_would_watch_is_not_prepared_for_longer_than_the_study_has(
    write_kernel: WriteKernel,
) -> None:
    factory = write_kernel()
    request = request_of(str(factory.kernel.folder), {"device": "cpu"})
    evaluator = WorkerEvaluator(functools.partial(made_dawdling, request))
    with pytest.raises(OutOfTimeError, match="compute-sanitizer on the winner was not over in time"):
        evaluator.sanitize(built(evaluator, factory, 0), 0.1)
    evaluator.close()


@pytest.mark.slow
def test_a_reference_that_does_not_compile_in_its_time_is_left_out(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "LEAST_COMPILE_SECONDS", 0.05)
    monkeypatch.setattr(plan, "MOST_COMPILE_SECONDS", 0.05)
    request = request_of(str(write_kernel().kernel.folder), {"device": "cpu", "trials": 2, "compile": True})
    with open_database(tmp_path / "results.db") as database:
        (report,) = tune(resolve(request), database)
    comparison = report.outcome.comparison
    assert comparison is not None and Baseline.REFERENCE in comparison.speedups
    assert comparison.missing == {Baseline.COMPILED: "torch.compile: still running after 0 s: killed"}


@pytest.mark.slow
def test_a_study_with_a_limit_of_time_does_not_wait_for_a_variant_that_hangs(
    write_kernel: WriteKernel, tmp_path: Path
) -> None:
    factory = write_kernel(source={WEIGH: HANG})
    found = study(factory, tmp_path, seconds=8.0, start=[{"variety": 1}])
    assert found[0] and all(status.timed for status in found[0])
    assert 1 not in found  # it began after the default and was let go of: nothing is said of it


def test_a_worker_that_a_kernel_ends(write_kernel: WriteKernel, start: Start) -> None:
    launch = "        blocks = plan"
    ends = f"        if plan.configuration['variety'] == 1:\n            os._exit(3)\n{launch}"
    factory = write_kernel(model={"import torch\n": "import os, torch\n", launch: ends})
    evaluator = start(factory)
    assert evaluate(evaluator, factory, 1).message == "the process ended with exit code 3"
    assert evaluate(evaluator, factory, 0).status.timed


def test_running_out_of_memory_is_a_row_and_costs_no_worker(write_kernel: WriteKernel, start: Start) -> None:
    allocation = "y = torch.empty_like(x)"
    greedy = f"{allocation} if plan.configuration['variety'] != 1 else torch.empty(1 << 60)"
    factory = write_kernel(model={allocation: greedy})
    evaluator = start(factory)
    failed = evaluate(evaluator, factory, 1)
    assert failed.status is TrialStatus.RUNTIME
    assert "memory" in failed.message
    assert "the worker" not in failed.message


@pytest.mark.slow
def test_three_deaths_in_a_row_stop_the_study_with_the_reason(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory = write_kernel(source={WEIGH: "*reinterpret_cast<volatile int*>(variety) = 0;"})
    with pytest.raises(WorkerError, match="3 variants in a row killed their worker"):
        study(factory, tmp_path)
    with open_database(tmp_path / "results.db", read_only=True) as database:
        assert [row.status for row in trials(database)] == [TrialStatus.RUNTIME] * 3


def test_what_the_worker_refuses_is_refused_here(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory = write_kernel(reference={"torch.rand(rows, columns) + 0.1": "torch.rand(rows, columns).t()"})
    with pytest.raises(UserError, match="cannot serve its reference's inputs"):
        study(factory, tmp_path)


def test_a_reference_that_crashes_is_said(write_kernel: WriteKernel, start: Start) -> None:
    factory = write_kernel(
        reference={"    return [torch.rand(rows": "    __import__('os').abort()\n    return [torch.rand(rows"}
    )
    with pytest.raises(WorkerError, match="did not come up: the process was killed by SIGABRT"):
        start(factory)


@pytest.mark.slow
def test_a_worker_ends_with_its_parent(write_kernel: WriteKernel, tmp_path: Path) -> None:
    marker = tmp_path / "worker"
    launch = "        blocks = plan"
    announce = f"        open({str(marker)!r}, 'w').write(str(__import__('os').getpid()))\n{launch}"
    factory = write_kernel(model={launch: announce}, source={WEIGH: HANG})
    arguments = ("tune", str(factory.kernel.folder), "--device", "cpu", "--db", str(tmp_path / "a.db"))
    parent = subprocess.Popen([sys.executable, "-m", "tunebench", *arguments, "--tunable", "variety=1"])
    deadline = time.monotonic() + 60
    while not marker.exists() or not marker.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline, "the study never began"
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    while Path("/proc", marker.read_text(encoding="utf-8")).exists():
        assert time.monotonic() < deadline + 30, "the worker outlives its parent"
        time.sleep(0.05)
