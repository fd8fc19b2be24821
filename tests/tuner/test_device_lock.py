"""The lock of a device, held by real processes; and which cores drive timings."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from tunebench.tuner.cores import driving_cores, kept_to
from tunebench.tuner.device import find_device
from tunebench.tuner.device_lock import DeviceLock, alone_on, locks_folder
from tunebench.tuner.errors import UserError

HOLDER = (
    "import sys; from tunebench.tuner.device_lock import DeviceLock; DeviceLock(sys.argv[1], 'a study').take(print); "
    "print('taken', flush=True); sys.stdin.read()"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEBENCH_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


def holder(name: str) -> subprocess.Popen[str]:
    """Another process, which has the lock of that name."""
    command = [sys.executable, "-c", HOLDER, name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None and process.stdout.readline() == "taken\n"
    return process


def test_a_device_is_waited_for_until_its_holder_is_killed() -> None:
    process = holder("GPU-1")
    said: list[str] = []
    waits, taken = threading.Event(), threading.Event()
    lock = DeviceLock("GPU-1", "another study")

    def take() -> None:
        lock.take(lambda text: (said.append(text), waits.set()))
        taken.set()

    try:
        threading.Thread(target=take, daemon=True).start()
        assert waits.wait(60)
        assert f"waiting for GPU-1: process {process.pid} on " in said[0] and said[0].endswith(", a study works on it")
        other = DeviceLock("GPU-2", "a study")
        other.take(said.append)  # another device is free
        assert not taken.is_set()
    finally:
        process.kill()
        process.communicate()
    assert taken.wait(60)
    assert len(said) == 1
    lock.release()
    lock.take(said.append)
    assert len(said) == 1
    lock.release()
    other.release()


def test_a_lock_may_be_made_by_one_user_and_taken_by_another(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        lock = DeviceLock("GPU-1", "a study")
        lock.take(pytest.fail)
        lock.release()
    finally:
        os.umask(before)
    assert (folder.stat().st_mode & 0o7777, (folder / "GPU-1.lock").stat().st_mode & 0o777) == (0o1777, 0o666)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNEBENCH_LOCKS", str(tmp_path / "file" / "locks"))
    with pytest.raises(UserError, match=r"cannot lock the device in .*; set TUNEBENCH_LOCKS to a folder"):
        DeviceLock("GPU-1", "a study").take(pytest.fail)


def test_a_link_in_the_place_of_a_lock_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "precious").write_text("text", encoding="utf-8")
    (folder / "GPU-1.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="cannot lock the device"):
        DeviceLock("GPU-1", "a study").take(pytest.fail)
    assert (tmp_path / "precious").read_text(encoding="utf-8") == "text"


def test_a_cpu_is_shared() -> None:
    with alone_on(find_device("cpu"), "a study"):
        assert not locks_folder().exists()


def test_cores_are_set_aside_where_there_are_some_to_spare() -> None:
    nowhere = Path("/nowhere")
    assert driving_cores({0, 1}, 1, nowhere) == ()
    assert driving_cores({4, 5, 6}, 1, nowhere) == [(4,)]
    assert driving_cores(range(16), 8, nowhere) == [(core,) for core in range(8)]
    assert driving_cores(range(16), 9, nowhere) == ()


ADJACENT = ("{0}-{1}", [(0, 1), (2, 3), (4, 5), (6, 7)])
"""As virtual machines number hardware threads."""
APART = ("{0},{1}", [(0, 4), (1, 5), (2, 6), (3, 7)])
"""As most other machines do."""


@pytest.mark.parametrize(
    ("machine", "cores", "devices", "expected"),
    [
        (ADJACENT, range(8), 2, [(0, 1), (2, 3)]),
        (APART, range(8), 2, [(0, 4), (1, 5)]),
        (ADJACENT, {1, 2, 3, 5, 7}, 2, [(1,), (2, 3)]),
        (ADJACENT, range(8), 3, [(0,), (1,), (2,)]),  # four physical ones are too few
        (ADJACENT, range(8), 5, ()),
    ],
    ids=str,
)
def test_a_timing_has_a_physical_core(
    tmp_path: Path,
    machine: tuple[str, Sequence[tuple[int, int]]],
    cores: Collection[int],
    devices: int,
    expected: object,
) -> None:
    form, physical = machine
    for threads in physical:
        for core in threads:
            place = tmp_path / f"cpu{core}" / "topology"
            place.mkdir(parents=True)
            (place / "thread_siblings_list").write_text(form.format(*threads) + "\n", encoding="utf-8")
    assert driving_cores(cores, devices, tmp_path) == expected


def test_a_thread_stays_on_its_cores_and_has_all_of_them_again() -> None:
    before = os.sched_getaffinity(0)
    with kept_to({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
        with kept_to(()):
            assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_who_times_nothing_shares_a_device_with_others_that_time_nothing() -> None:
    said: list[str] = []
    first, second, alone = (DeviceLock("GPU-1", "a study") for _ in range(3))
    first.take(said.append, shared=True)
    second.take(said.append, shared=True)
    waits, taken = threading.Event(), threading.Event()

    def take() -> None:
        alone.take(lambda _: waits.set())
        taken.set()

    threading.Thread(target=take, daemon=True).start()
    assert waits.wait(60)
    first.release()
    assert not taken.is_set() and said == []
    second.release()
    assert taken.wait(60)
    alone.release()
