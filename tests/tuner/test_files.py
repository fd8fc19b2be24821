"""A file that a user names is there whole or not at all, and what is no file of his is left alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tunebench.tuner.errors import UserError
from tunebench.tuner.files import whole_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder."""
    path = tmp_path / "folder"
    path.mkdir()
    return path


def write(file: Path, content: bytes = b"new", *, replace: bool = True) -> None:
    with whole_file(file, replace=replace) as stream:
        stream.write(content)


def test_a_file_appears_when_it_is_complete(folder: Path) -> None:
    file = folder / "file"
    file.write_bytes(b"old")
    with whole_file(file) as stream:
        stream.write(b"new")
        stream.flush()
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new"
    assert list(folder.iterdir()) == [file]


def test_nothing_changes_where_writing_fails(folder: Path) -> None:
    file = folder / "file"
    file.write_bytes(b"old")
    with pytest.raises(KeyError), whole_file(file) as stream:
        stream.write(b"half")
        raise KeyError
    with pytest.raises(UserError, match="No space left"), whole_file(file) as stream:
        raise OSError(28, "No space left on device")
    with pytest.raises(UserError, match="--force"):
        write(file, replace=False)
    assert file.read_bytes() == b"old"
    assert list(folder.iterdir()) == [file]


def test_a_link_stays_and_its_target_is_written(folder: Path) -> None:
    (folder / "sub").mkdir()
    target, link, dangling = folder / "sub" / "target", folder / "link", folder / "dangling"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    dangling.symlink_to(folder / "sub" / "new")
    write(link)
    write(dangling)
    assert link.is_symlink() and dangling.is_symlink()
    assert target.read_bytes() == (folder / "sub" / "new").read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_what_is_no_regular_file_is_refused_and_stays(folder: Path) -> None:
    pipe, link = folder / "pipe", folder / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    for file in (pipe, link, Path("/dev/null"), folder):
        with pytest.raises(UserError, match="cannot write"):
            write(file)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert sorted(folder.iterdir()) == [link, pipe]


def test_a_folder_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match="no does not exist"):
        write(folder / "no" / "file")


def test_what_a_killed_process_left_is_removed_and_nothing_else(folder: Path) -> None:
    file = folder / "fi[le"
    script = "import os, pathlib, sys; from tunebench.tuner.files import whole_file\n"
    script += "with whole_file(pathlib.Path(sys.argv[1])) as stream: stream.write(b'half'); stream.flush(); os._exit(9)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script, str(file)], check=False, env=environment)
    assert ended.returncode == 9
    (left,) = folder.iterdir()
    living = file.with_name(f"{file.name}.{os.getppid()}.partial")
    other, word = folder / f"other.{left.name}", file.with_name(f"{file.name}.mine.partial")
    for one in (living, other, word):
        one.write_bytes(b"of somebody")
        os.utime(one, (0, 0))
    # As new as it is, it could be of a process of another machine with the same folder.
    write(file)
    assert left.exists()
    os.utime(left, (time.time() - 3600,) * 2)
    write(file)
    assert sorted(folder.iterdir()) == sorted([file, living, other, word])
