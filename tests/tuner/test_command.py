"""Programs: their deadline, their output, their end."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tunebench.tuner.command import GitError, git, run_command


def test_a_program_reads_and_writes() -> None:
    ended = run_command(["sh", "-c", "cat; echo $WORD >&2; exit 3"], given=b"given", environment={"WORD": "word"})
    assert (ended.code, ended.printed, ended.errors, ended.log) == (3, b"given", b"word\n", "givenword\n")
    assert run_command(["sh", "-c", "echo a; echo b >&2; echo c"], together=True).log == "a\nb\nc\n"


def test_its_signal_is_told() -> None:
    assert run_command(["sh", "-c", "kill -SEGV $$"]).code == -signal.SIGSEGV


def test_at_its_deadline_it_ends_with_what_it_has_started(tmp_path: Path) -> None:
    ended = run_command(["sh", "-c", "sleep 100 & echo $!; wait"], 0.5, folder=tmp_path)
    assert ended.code is None
    child = Path("/proc") / ended.printed.decode().strip() / "stat"
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text(encoding="ascii").split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.exists() or child.read_text(encoding="ascii").split()[2] == "Z"


def test_what_it_leaves_behind_with_its_output_is_not_waited_for() -> None:
    started = time.monotonic()
    assert run_command(["sh", "-c", "setsid sleep 20 & echo done"]).printed == b"done\n"
    assert time.monotonic() - started < 15


def test_git_refuses_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="not a git repository"):
        git(tmp_path, "status")
