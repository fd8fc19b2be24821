"""A process of its own: what it answers, and every way in which it may not."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunebench.tuner.errors import CompileError, UnknownNameError, WorkerError
from tunebench.tuner.first_lines import MOST_LINES, FirstLines
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.isolation import (
    DiedError,
    HungError,
    IsolatedProcess,
    RaisedError,
    asked_again_if_killed,
    leave,
    report,
    run_isolated,
)
from tunebench.tuner.scratch import scratch_folder

SECONDS = 60.0
count = 0


@pytest.fixture(scope="module", autouse=True)
def server() -> None:
    start_forkserver([__name__])


@pytest.fixture
def process() -> Iterator[IsolatedProcess]:
    one = IsolatedProcess()
    one.start()
    yield one
    one.close()


def counted(step: int) -> tuple[int, int]:
    global count  # noqa: PLW0603 - what a process remembers is under test
    count += step
    return os.getpid(), count


def own_error() -> None:
    raise UnknownNameError("kernel", "scaler_mul", ["scalar_mul"])


def compile_error() -> None:
    raise CompileError("g++ refused it", "the log")


class Foreign(Exception):
    """Two arguments, so that it does not survive pickling."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}\nand a second line")


def foreign_error() -> None:
    raise Foreign(1, 2)


def unpicklable() -> object:
    return lambda: None


def hang() -> None:
    time.sleep(1000)


def die(how: str) -> None:
    if how == "exit":
        os._exit(3)
    if how == "leave":
        leave("the device is lost")
    os.kill(os.getpid(), getattr(signal, how))


def tell(lines: list[str]) -> int:
    for line in lines:
        report(line)
    return len(lines)


def interrupted() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "goes on"


_FIRST_OF_ALL = """
import os, signal
from tunebench.tuner.gate.boundary.supervisor import Supervised
from tunebench.tuner.isolation import run_isolated
Supervised(os._exit).close()
assert signal.SIGINT in run_isolated(60, signal.pthread_sigmask, signal.SIG_BLOCK, [])
"""


def environment(name: str) -> str | None:
    return os.environ.get(name)


def stop_server() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(SECONDS)


@pytest.mark.slow
def test_a_process_that_stops_the_server_has_its_deadline_all_the_same(process: IsolatedProcess) -> None:
    with pytest.raises(HungError, match="still running after 1 s"):
        process.ask(1.0, stop_server)
    assert run_isolated(SECONDS, counted, 1)[1] == 1


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.5])
def test_a_process_is_killed_for_good_whatever_it_is_at(seconds: float) -> None:
    process, raised = IsolatedProcess(), list[Exception]()

    def work() -> None:
        for _ in range(2):
            try:
                process.start()
                process.ask(SECONDS, time.sleep, SECONDS)
            except (DiedError, WorkerError) as error:
                raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(seconds)
    process.kill()
    thread.join(SECONDS / 2)
    assert not thread.is_alive() and not process.alive
    assert isinstance(raised[-1], WorkerError)
    process.close()


def test_a_process_answers_more_than_once_and_remembers(process: IsolatedProcess) -> None:
    first, second = process.ask(SECONDS, counted, 2), process.ask(SECONDS, counted, 3)
    assert first[0] == second[0] != os.getpid()
    assert (first[1], second[1]) == (2, 5)


def test_its_own_errors_come_as_they_are(process: IsolatedProcess) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown kernel 'scaler_mul'; did you mean scalar_mul\?"):
        process.ask(SECONDS, own_error)
    with pytest.raises(CompileError, match=r"g\+\+ refused it") as caught:
        process.ask(SECONDS, compile_error)
    assert caught.value.log == "the log"
    assert process.alive


def test_other_errors_come_as_one_line_with_their_place(process: IsolatedProcess) -> None:
    with pytest.raises(RaisedError, match=r"^Foreign: 1 and 2 \(test_isolated_process.py:\d+\)$"):
        process.ask(SECONDS, foreign_error)
    # Python 3.12 says "pickle" here, 3.13 does not.
    with pytest.raises(RaisedError, match=r"unpicklable.<locals>.<lambda>"):
        process.ask(SECONDS, unpicklable)
    assert process.ask(SECONDS, counted, 1)[1] >= 1


def test_messages_come_before_the_answer_in_order() -> None:
    heard: list[str] = []
    assert run_isolated(SECONDS, tell, ["one", "two"], listen=heard.append) == 2
    assert heard == ["one", "two"]


def test_one_that_hangs_is_killed(process: IsolatedProcess) -> None:
    pid, _ = process.ask(SECONDS, counted, 1)
    with pytest.raises(HungError, match="still running after 0 s: killed"):
        process.ask(0.2, hang)
    assert not process.alive
    assert not Path("/proc", str(pid)).exists()


@pytest.mark.parametrize(
    ("how", "message", "from_outside"),
    [
        ("exit", "the process ended with exit code 3", False),
        ("leave", "the device is lost", False),
        ("SIGSEGV", "the process was killed by SIGSEGV", False),
        ("SIGKILL", "the process was killed by SIGKILL (as the system does when memory runs out)", True),
        ("SIGTERM", "the process was killed by SIGTERM", True),
    ],
)
def test_how_it_died_is_told(process: IsolatedProcess, how: str, message: str, from_outside: bool) -> None:
    with pytest.raises(DiedError) as caught:
        process.ask(SECONDS, die, how)
    assert (str(caught.value), caught.value.from_outside) == (message, from_outside)
    process.start()
    assert process.ask(SECONDS, counted, 1)[1] == 1


def test_the_death_of_an_idle_process_is_seen_and_told(process: IsolatedProcess) -> None:
    pid, _ = process.ask(SECONDS, counted, 1)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while process.alive:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(DiedError, match="SIGKILL") as caught:
        process.ask(SECONDS, counted, 1)
    assert caught.value.from_outside


def test_a_question_is_asked_again_once_where_its_process_was_killed() -> None:
    asked: list[str] = []

    def question(*ways: str) -> str:
        asked.append(ways[len(asked)])
        if asked[-1] == "answers":
            return "answer"
        run_isolated(SECONDS, die, asked[-1])
        raise AssertionError

    assert asked_again_if_killed(lambda: question("SIGKILL", "answers")) == "answer"
    asked.clear()
    with pytest.raises(DiedError):
        asked_again_if_killed(lambda: question("SIGKILL", "SIGKILL", "answers"))
    asked.clear()
    with pytest.raises(DiedError):
        asked_again_if_killed(lambda: question("SIGSEGV", "answers"))


def test_ctrl_c_is_the_parents_to_answer() -> None:
    assert run_isolated(SECONDS, interrupted) == "goes on"
    subprocess.run([sys.executable, "-c", _FIRST_OF_ALL], check=True, timeout=SECONDS)


def test_settings_are_those_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEBENCH_TEST", "now")
    assert run_isolated(SECONDS, environment, "TUNEBENCH_TEST") == "now"
    monkeypatch.delenv("TUNEBENCH_TEST")
    assert run_isolated(SECONDS, environment, "TUNEBENCH_TEST") is None


def test_its_temporary_files_are_the_parents_to_remove() -> None:
    assert run_isolated(SECONDS, scratch_folder) == scratch_folder()


def test_what_is_printed_does_not_flood_the_terminal() -> None:
    # More than a pipe holds: when the process answers, its first lines have been passed on.
    code = "import subprocess\nfrom tunebench.tuner.isolation import run_isolated\n"
    code += "print(run_isolated(60.0, subprocess.call, ['seq', '50000']))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True)
    assert ran.stdout == "0\n"
    shown = [str(number) for number in range(1, MOST_LINES + 1)]
    assert ran.stderr.splitlines() == [*shown, "(no more of what is printed here is shown)"]


_KILLED = """
import os, signal
from multiprocessing import forkserver
from tunebench.tuner.fork_server import start_forkserver
start_forkserver(["torch._dynamo"])
print(forkserver._forkserver._forkserver_pid, flush=True)
signal.pause()
"""


def test_a_server_ends_with_its_killed_parent_before_it_has_imported_anything() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert parent.stdout is not None
    server = Path("/proc", parent.stdout.readline().strip(), "maps")
    parent.kill()
    parent.wait()  # not for the end of its output, which is the server's, too
    deadline = time.monotonic() + SECONDS
    with contextlib.suppress(OSError):  # it is gone
        while mapped := server.read_bytes():  # a zombie has none
            assert time.monotonic() < deadline and b"libtorch_cpu" not in mapped
            time.sleep(0.01)


def test_a_process_has_a_collector_and_leaves_alone_what_its_server_imported() -> None:
    assert run_isolated(SECONDS, gc.isenabled)
    assert run_isolated(SECONDS, gc.get_freeze_count) > 0


@pytest.mark.slow
def test_importing_the_tracer_makes_no_folder_of_inductors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    code = "from tunebench.tuner.fork_server import start_forkserver\n"
    code += "from tunebench.tuner.isolation import run_isolated\nimport os\n"
    code += "start_forkserver(['torch._dynamo'])\n"
    code += "assert run_isolated(600, os.getenv, 'TORCHINDUCTOR_CACHE_DIR') is None"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
    assert not list(tmp_path.glob("torchinductor*"))


def test_a_line_without_an_end_is_cut(capfd: pytest.CaptureFixture[str]) -> None:
    lines = FirstLines()
    for _ in range(3):
        lines.take(b"x" * 1_000_000)
    _, err = capfd.readouterr()
    assert set(err.splitlines()[0]) == {"x"} and len(err) < 25_000 and err.endswith("is shown)\n")
