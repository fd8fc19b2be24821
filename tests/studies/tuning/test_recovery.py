"""Compilers that hang, disks that are full, databases that are locked, processes that are killed."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ended
from sample_kernel import WriteKernel
from tests.benchmarks.recovery import kill_again_and_again

from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.resolved import make_evaluator, resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import tune
from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import Building
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import CompileTimeoutError, DatabaseError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialResult, TrialStatus
from tunebench.tuner.study.worker import WorkerEvaluator
from tunebench.tuner.variant import Variant

pytestmark = pytest.mark.usefixtures("short_studies")

CPU = find_device("cpu")
LAUNCH = "        blocks = plan"


def tune_folder(factory: type[TunedModule], database_file: Path, **options: object) -> list[tuple[object, TrialStatus]]:
    """The value of `variety` and the status of each trial, by number."""
    request = request_of(str(factory.kernel.folder), {"device": "cpu", "sampler": "exhaustive", **options})
    with open_database(database_file) as database:
        tune(resolve(request), database)
        rows = sorted(trials(database, limit=None), key=lambda row: row.number)
    return [(row.configuration["variety"], row.status) for row in rows]


# ------------------------------------------------------------ compilers


@pytest.fixture
def hanging_gxx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A g++ that never ends, and starts a process that never ends either, where the source says so."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "g++"
    script.write_text(
        "#!/bin/sh\n"
        f"if [ -f variant.cu ] && grep -q 'variety = 1;' variant.cu; then\n"
        f"    sleep 1000 & echo $! >> {tmp_path}/children; wait\n"
        f'fi\nexec {shutil.which("g++")} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "builds"))
    return tmp_path / "children"


@pytest.mark.slow
def test_a_compiler_that_hangs_is_killed_with_its_children_and_the_study_goes_on(
    write_kernel: WriteKernel, tmp_path: Path, hanging_gxx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuCompiler, "deadline_seconds", 5.0)
    tunables = {"variety": [0, 1], "block_size": [64], "blocks": [1, 2]}
    found = tune_folder(write_kernel(), tmp_path / "a.db", tunables=tunables)
    assert {status for variety, status in found if variety == 1} == {TrialStatus.TIMEOUT}
    assert all(status.timed for variety, status in found if variety == 0)
    assert len(found) == 4
    children = hanging_gxx.read_text(encoding="utf-8").split()
    assert len(children) == 1  # configurations that share a variant share its failure
    assert not any(map(runs, children))


def runs(process: str) -> bool:
    """Whether a process is there, and not only its entry in a table that nobody has read yet."""
    status = Path("/proc", process, "status")
    return status.exists() and "State:\tZ" not in status.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("program", "kills"), [("g++", 1), ("cc1plus", 1), ("cc1plus", 2)])
def test_a_compiler_that_is_killed_has_one_more_try(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, kills: int
) -> None:
    """The driver and the compiler proper, each of which says in its own way that it was killed."""
    folder, counter = tmp_path / "bin", tmp_path / "kills"
    folder.mkdir()
    gxx = shutil.which("g++")
    assert gxx is not None
    compiler = (
        subprocess.run([gxx, "-print-prog-name=cc1plus"], capture_output=True, check=True).stdout.decode().strip()
    )
    (folder / program).write_text(
        "#!/bin/sh\n"
        f"if [ -f variant.cu ] && grep -q 'variety = 1;' variant.cu && [ $(cat {counter} | wc -l) -lt {kills} ]; then\n"
        f"    echo killed >> {counter}; kill -KILL $$\n"
        f'fi\nexec {gxx if program == "g++" else compiler} "$@"\n',
        encoding="utf-8",
    )
    (folder / program).chmod(0o755)
    counter.touch()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("COMPILER_PATH", str(folder))
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "builds"))
    tunables = {"variety": [0, 1], "block_size": [64], "blocks": [1]}
    found = tune_folder(write_kernel(), tmp_path / "a.db", tunables=tunables)
    assert len(counter.read_text(encoding="utf-8").splitlines()) == kills
    statuses = dict(found)
    assert statuses[0].timed
    assert statuses[1].timed if kills == 1 else statuses[1] is TrialStatus.COMPILE
    with open_database(tmp_path / "a.db") as database:
        messages = [row.message for row in trials(database, limit=None)]
    told = [message for message in messages if "g++ was killed while it compiled weigh.cu: is there enough" in message]
    assert len(told) == kills - 1


class Stuck(CpuCompiler):
    """A compiler inside this process that never comes back."""

    deadline_seconds = 0.2

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def compile(self, variant: Variant) -> Build:
        self.entered.set()
        self.released.wait(60)
        return super().compile(variant)


def test_a_compiler_that_cannot_be_killed_is_given_up_and_the_next_takes_its_turn(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunebench.tuner.compile.building._CLOSE_SECONDS", 0.2)
    kernel = write_kernel().kernel
    space = kernel.space.enumerate(Problem({"n": 64}), CPU)
    variants = [kernel.variant(space[number], Problem({"n": 64}), CPU.architecture) for number in (0, 1)]
    stuck, turns, cache = Stuck(), threading.Semaphore(1), BuildCache(tmp_path / "builds")
    hung = Building(stuck, cache, variants[0], turns)
    stuck.entered.wait(60)
    waiting = Building(compiler_for(CPU), cache, variants[1], turns)
    with pytest.raises(CompileTimeoutError, match=r"weigh.cu was still compiling after 0 s"):
        hung.result()
    assert waiting.result().code
    stuck.released.set()


# ------------------------------------------------------------ full disk


@pytest.mark.slow
def test_builds_that_cannot_be_kept_are_used_all_the_same(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "builds"
    in_the_way.write_text("a file where the cache's folder belongs", encoding="utf-8")
    monkeypatch.setenv("TUNEBENCH_CACHE", str(in_the_way))
    with pytest.warns(RuntimeWarning, match="builds are not kept"):
        found = tune_folder(write_kernel(), tmp_path / "a.db", trials=1)
    assert found[0][1].timed


@pytest.mark.slow
def test_a_full_disk_ends_a_study_with_the_reason_and_it_goes_on_when_there_is_room(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system of two megabytes in a namespace of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=2m tunebench {disk}"
    if shutil.which("unshare") is None or subprocess.run([*unshare, mount], check=False).returncode:
        pytest.skip("this user may not mount a file system of its own")
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "builds"))
    script = Path(__file__).parents[1] / "full_disk.py"
    arguments = f"{script} {disk} {write_kernel().kernel.folder} {tmp_path}/elsewhere.db"
    done = ended(*unshare, f"{mount} && exec {sys.executable} {arguments}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["at first"] == found["with room again"] == ""
    assert "the disk is full: make room, and run the same command again" in found["on a full disk"]
    assert found["in the end"][: len(found["kept"])] == found["kept"]
    assert 2 <= len(found["kept"]) <= len(found["in the end"]) == 6
    # No variant is blamed for it.
    assert found["compiling on a full disk"].startswith("DiskFullError: the disk that")
    assert found["compiled"] == []
    assert not {"compile", "runtime"} & set(found["in the end"])


# ------------------------------------------------------------ a locked database


@pytest.mark.slow
def test_a_database_that_another_process_keeps_locked(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, factory = tmp_path / "a.db", write_kernel()
    first = tune_folder(factory, file, trials=2)
    monkeypatch.setattr("tunebench.db.connection.engine.BUSY_SECONDS", 0.3)
    holder = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
    holder += "c.execute('BEGIN IMMEDIATE'); print('locked', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", holder, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        with pytest.raises(DatabaseError, match="another process has kept the database locked"):
            tune_folder(factory, file, trials=5)
    finally:
        process.communicate()
    assert tune_folder(factory, file, trials=5)[:2] == first


# ------------------------------------------------------------ kills from outside


@pytest.fixture
def evaluators() -> Iterator[list[WorkerEvaluator]]:
    """Evaluators that end with the test."""
    started: list[WorkerEvaluator] = []
    yield started
    for evaluator in started:
        evaluator.close()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 2])
def test_a_variant_whose_worker_is_killed_from_outside_has_one_more_try(
    write_kernel: WriteKernel, tmp_path: Path, evaluators: list[WorkerEvaluator], kills: int
) -> None:
    """It waits to be killed for so many times, then runs as it should."""
    marker = tmp_path / "workers"
    marker.write_text("", encoding="utf-8")
    wait = (
        "        import os, time\n"
        f"        with open({str(marker)!r}, 'a+') as file:\n"
        "            file.seek(0)\n"
        f"            waits = len(file.readlines()) < {kills}\n"
        "            if waits: file.write(f'{os.getpid()}\\n')\n"
        "        while waits: time.sleep(0.01)\n"
    )
    factory = write_kernel(model={LAUNCH: wait + LAUNCH})
    request = request_of(str(factory.kernel.folder), {"device": "cpu"})
    evaluator = WorkerEvaluator(functools.partial(make_evaluator, request, Mode.EVAL))
    evaluators.append(evaluator)
    configuration = factory.kernel.space.enumerate(evaluator.problem, CPU)[0]
    build = BuildCache().build(
        compiler_for(CPU), factory.kernel.variant(configuration, evaluator.problem, CPU.architecture)
    )
    results: list[TrialResult] = []
    thread = threading.Thread(target=lambda: results.append(evaluator.evaluate(configuration, build)))
    thread.start()
    deadline = time.monotonic() + 60
    for number in range(kills):
        while len(workers := marker.read_text(encoding="utf-8").splitlines()) <= number:
            assert time.monotonic() < deadline, "the variant never began"
            time.sleep(0.02)
        os.kill(int(workers[number]), signal.SIGKILL)
    thread.join(60)
    (result,) = results
    if kills == 1:
        assert result.status.timed
        assert result.seconds["restart"] > 0
    else:
        assert (result.status, result.message) == (
            TrialStatus.RUNTIME,
            "the process was killed by SIGKILL (as the system does when memory runs out)",
        )


@pytest.mark.slow
def test_a_study_killed_at_random_moments_ends_as_if_nothing_had_happened(
    write_kernel: WriteKernel, tmp_path: Path
) -> None:
    seen: list[object] = []
    options = ("--tunable", "variety=0,1")
    folder = str(write_kernel().kernel.folder)
    assert kill_again_and_again(folder, options, tmp_path, 16, 2, 5.0, 3, seen.append) == []
    assert len(seen) == 2
