"""The environment names the commit of the kernel's folder, and is none the worse where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tunebench.tuner.device import find_device
from tunebench.tuner.environment import commit_of, current_environment


def git(folder: Path, *arguments: str) -> str:
    name = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    done = subprocess.run(["git", "-C", folder, *name, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A kernel's folder in a repository that has it."""
    folder = tmp_path / "kernels" / "scale"
    folder.mkdir(parents=True)
    (folder / "scale.cu").write_text("// 1\n", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return folder


def test_a_folder_is_at_the_commit_of_its_repository(kernel: Path) -> None:
    head = git(kernel, "rev-parse", "HEAD")
    assert len(head) == 40
    assert commit_of(kernel) == head
    (kernel.parent / "other.py").write_text("not of this kernel", encoding="utf-8")
    assert commit_of(kernel) == head
    assert current_environment(find_device("cpu"), "g++ 13", kernel).kernel_commit == head
    assert current_environment(find_device("cpu"), "g++ 13").kernel_commit is None


@pytest.mark.parametrize("file", ["scale.cu", "new.cuh"])
def test_a_folder_with_changes_says_so(kernel: Path, file: str) -> None:
    (kernel / file).write_text("// 2\n", encoding="utf-8")
    assert commit_of(kernel) == git(kernel, "rev-parse", "HEAD") + "+dirty"


def test_what_git_does_not_keep_has_no_commit(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = kernel.parent / "installed"
    installed.mkdir()
    (installed / "scale.cu").write_text("// 1\n", encoding="utf-8")
    assert commit_of(installed) is None
    assert commit_of(tmp_path.parent) is None
    assert commit_of(tmp_path / "nowhere") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(kernel) is None


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text("// 1\n", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    assert commit_of(tmp_path) is None
