"""The helper that stays warm: commands run in forks of it as they would in a process of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.gate_files.references import SCALE

pytestmark = pytest.mark.slow


class Commands:
    """Starts commands that ask for a helper, whose socket is in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "TUNEBENCH_KEEP_WARM": "60"}

    def start(self, *arguments: str, **options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tunebench", *arguments],
            env={**self.environment, **options},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, said: str = "", **options: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **options)
        out, err = process.communicate(said, timeout=60)
        return process.returncode, out, err

    @property
    def socket(self) -> Path:
        (socket,) = self.folder.glob("tunebench-warm-*/*.sock")
        return socket

    def at_work(self) -> int:
        """Return the number of commands at work: processes with the helper's own line, beside itself."""
        numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return sum(str(self.socket).encode() in _line_of(number) for number in numbers) - 1


def _line_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    commands = Commands(tmp_path_factory.mktemp("warm"))
    assert commands("--version")[0] == 0
    _wait_for(lambda: list(commands.folder.glob("tunebench-warm-*/*.sock")))
    yield commands
    code, out, _ = commands("stop")
    assert (code, out) == (0, "1 ended\n")
    assert not list(commands.folder.glob("tunebench-warm-*/*.sock"))
    assert commands("stop")[1] == "there is none\n"


def test_a_command_is_answered_as_without_a_helper(run: Commands) -> None:
    for arguments in (["check", "nothing_here.py"], ["check", "--no-such-option"], ["--help"]):
        assert run(*arguments) == run(*arguments, TUNEBENCH_KEEP_WARM="")
    (run.folder / "relative.py").write_text("no model", encoding="utf-8")
    code, _, err = run("check", "relative.py")
    assert (code, err) == (2, "tunebench: relative.py: no ModelNew; the model to check has that name\n")
    asked = json.dumps(["check", {"targets": ["nothing_here.py"]}])
    assert run("answer", said=asked) == run("check", "nothing_here.py", "--json")


def test_signals_and_a_lost_terminal_end_the_command(run: Commands) -> None:
    for number, code, line in ((signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")):
        process = run.start("answer")  # waits for what it is told
        _wait_for(lambda: run.at_work() == 1)
        process.send_signal(number)
        process.wait(20)  # before its input ends, which is an answer too
        assert (process.returncode, process.communicate()[1]) == (code, f"tunebench: {line}\n")
    process = run.start("answer")
    _wait_for(lambda: run.at_work() == 1)
    process.kill()
    process.communicate()
    _wait_for(lambda: run.at_work() == 0)
    assert run("--version")[0] == 0


def test_a_reader_that_is_gone_is_no_error(run: Commands) -> None:
    process = run.start("--help")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(20) == -signal.SIGPIPE


def test_another_environment_has_another_helper_and_the_folder_is_the_users_alone(
    run: Commands, tmp_path: Path
) -> None:
    socket = run.socket
    assert run("--help", COLUMNS="50")[0] == 0 and run.socket == socket
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    open_to_all = tmp_path / socket.parent.name
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    code, _, err = run("--version", XDG_RUNTIME_DIR=str(tmp_path))
    assert code == 2 and "not a folder of mode 0700" in err and err.count("\n") == 1
    code, _, err = run("--version", TUNEBENCH_KEEP_WARM="soon")
    assert (code, err) == (
        2,
        "tunebench: TUNEBENCH_KEEP_WARM is 'soon': give the seconds that a helper stays, 1 to 86400\n",
    )


def test_a_file_that_is_checked_does_not_reach_the_helper(run: Commands) -> None:
    reaching = f"""
import socket
class ModelNew(Model):
    def __init__(self, *given):
        super().__init__(*given)
        socket.socket(socket.AF_UNIX).connect({str(run.socket)!r})
"""
    (run.folder / "reference.py").write_text(SCALE, encoding="utf-8")
    (run.folder / "reaching.py").write_text(SCALE + reaching, encoding="utf-8")
    code, out, _ = run("check", "reaching.py", "--reference", "reference.py", "--device", "cpu", "--json")
    (report,) = json.loads(out)
    assert code == 1 and report["refusals"][0]["stage"] == "model"
    assert "boxed" not in report["box"] or "Error" in report["refusals"][0]["detail"]


def _wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
