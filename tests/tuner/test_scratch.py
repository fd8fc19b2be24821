"""Temporary files of processes that end, are killed, or live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HOLD = """
import sys
from tunebench.tuner.scratch import scratch_folder
folder = scratch_folder()
(folder / "file").write_text("something", encoding="utf-8")
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("t")  # a path in which a socket's name has room
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def hold() -> tuple[subprocess.Popen[str], Path]:
    """A process that has a scratch folder until its standard input ends."""
    command = [sys.executable, "-c", HOLD]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def age(folder: Path) -> None:
    os.utime(folder, (0, 0))


def test_a_process_that_ends_leaves_nothing(temporary: Path) -> None:
    process, folder = hold()
    assert folder.parent == temporary and folder.is_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    process.communicate()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_others_use_is_not(temporary: Path) -> None:
    killed, abandoned = hold()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    foreign = temporary / "tunebench-scratch-of-somebody"  # without a lock it is none of ours
    foreign.mkdir()
    age(foreign)
    living, used = hold()
    assert not abandoned.exists()
    last, young = hold()
    assert (used / "file").exists() and foreign.is_dir() and young.is_dir()
    for process in (living, last):
        process.communicate()
    assert list(temporary.iterdir()) == [foreign]


def test_a_folder_that_is_just_being_made_is_left_alone_for_a_minute(temporary: Path) -> None:
    young, old = temporary / ".tunebench-scratch-young", temporary / ".tunebench-scratch-old"
    for folder in (young, old):
        folder.mkdir()
        (folder / ".lock").touch()
    age(old)
    hold()[0].communicate()
    assert list(temporary.iterdir()) == [young]


def test_the_sockets_of_a_server_that_processes_are_forked_from_go_with_the_folder(temporary: Path) -> None:
    killed = "import os; from tunebench.tuner.fork_server import start_forkserver as s; s(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -signal.SIGKILL
    assert len(list(temporary.iterdir())) == 1
    hold()[0].communicate()
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.usefixtures("temporary")
def test_another_users_folder_is_left_alone() -> None:
    killed, abandoned = hold()
    killed.kill()
    killed.communicate()
    os.chown(abandoned, 12345, 12345)
    hold()[0].communicate()
    assert abandoned.exists()
