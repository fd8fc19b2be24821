"""The box: what a process in it cannot reach, each beside what the same process reaches without one."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import pytest

from tunebench.tuner.first_lines import MOST_LINES
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.gate.boundary.box import Box, Walls, room_for, told, walls_for
from tunebench.tuner.gate.boundary.supervisor import Supervised

PIDFD_OPEN, PIDFD_GETFD, PTRACE_ATTACH = 434, 438, 16
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module", autouse=True)
def server() -> None:
    start_forkserver([__name__])


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user, as the judge is."""
    wait = "import time; print('ready', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", wait], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.communicate()


def succeeds(answer: int) -> bool:
    return answer >= 0


def takes_a_descriptor(pid: int, _: Path) -> bool:
    return succeeds(libc.syscall(PIDFD_GETFD, libc.syscall(PIDFD_OPEN, pid, 0), 1, 0))


def traces(pid: int, _: Path) -> bool:
    return succeeds(libc.ptrace(PTRACE_ATTACH, pid, 0, 0))


def reads_memory(pid: int, _: Path) -> bool:
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="ascii")
    start = int(maps.split("-")[0], 16)
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(start)
        return len(memory.read(4)) == 4


def writes_on_its_output(pid: int, _: Path) -> bool:
    return os.open(f"/proc/{pid}/fd/1", os.O_WRONLY) >= 0


def stops_it(pid: int, _: Path) -> bool:
    os.kill(pid, signal.SIGSTOP)
    return True


def writes_beside_the_file(_: int, folder: Path) -> bool:
    return (folder / "sitecustomize.py").write_text("raise SystemExit(0)", encoding="utf-8") > 0


def changes_the_reference(_: int, folder: Path) -> bool:
    return (folder / "reference.py").write_text("", encoding="utf-8") == 0


def leaves_shared_memory(_: int, folder: Path) -> bool:
    (Path("/dev/shm") / folder.name).touch()
    return True


def connects(_: int, folder: Path) -> bool:
    port = int((folder / "port").read_text(encoding="ascii"))
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def asks_whoever_listens(_: int, folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(folder / "listening"))
    return True


def knows_a_token(_pid: int, _folder: Path) -> bool:
    assert "PATH" in os.environ
    return "PYTEST_VERSION" in os.environ


def makes_a_namespace(_pid: int, _folder: Path) -> bool:
    return succeeds(libc.unshare(0x10000000))


CLOSED = frozenset({Walls.NAMESPACES, Walls.LANDLOCK})
ATTACKS: dict[Callable[[int, Path], bool], frozenset[Walls]] = {
    takes_a_descriptor: frozenset(Walls),
    reads_memory: CLOSED,
    writes_on_its_output: CLOSED,
    writes_beside_the_file: CLOSED,
    changes_the_reference: CLOSED,
    leaves_shared_memory: frozenset({Walls.LANDLOCK}),
    connects: CLOSED,
    asks_whoever_listens: CLOSED,
    knows_a_token: frozenset(Walls),
    stops_it: CLOSED,
    traces: frozenset(Walls),
    makes_a_namespace: frozenset(Walls),
}
"""Each attack with the walls that keep it from succeeding, those last after which others cannot."""


def attempt(connection: Connection, attacks: list[Callable[[int, Path], bool]], pid: int, folder: Path) -> NoReturn:
    """Try each; send what succeeded."""
    got = []
    for attack in attacks:
        try:
            if attack(pid, folder):
                got.append(attack.__name__)
        except OSError:
            pass
    connection.send_bytes(json.dumps(got).encode())
    os._exit(0)


def run_in(walls: Walls | None, run: Callable[[Connection], NoReturn], folder: Path) -> Supervised:
    """Start a process in a box with these walls, or in none."""
    room = None
    if walls is not None:
        own = folder / "own"
        own.mkdir(exist_ok=True)
        room = room_for(walls, own, [folder / "reference.py"], is_on_gpu=False)
    process = Supervised(run, room)
    if room is not None and (refused := process.connection.recv_bytes().decode()):
        process.close()
        pytest.skip(f"{walls}: {refused}")
    return process


def done_in(
    walls: Walls | None, attacks: Sequence[Callable[[int, Path], object]], folder: Path, pid: int = 0
) -> set[str]:
    """Return the names of the attacks that succeed."""
    process = run_in(walls, partial(attempt, attacks=attacks, pid=pid, folder=folder), folder)
    with closing(process):
        return set(json.loads(process.connection.recv_bytes()))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "reference.py").write_text("kept", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (tmp_path / "port").write_text(str(listening.getsockname()[1]), encoding="ascii")
        with socket.socket(socket.AF_UNIX) as on_disk:
            on_disk.bind(str(tmp_path / "listening"))
            on_disk.listen()
            yield tmp_path
    (Path("/dev/shm") / tmp_path.name).unlink(missing_ok=True)


@pytest.mark.parametrize("walls", Walls)
def test_an_attack_that_succeeds_without_a_box_fails_in_it(
    walls: Walls, victim: subprocess.Popen[bytes], folder: Path
) -> None:
    attacks = [attack for attack, kept_by in ATTACKS.items() if walls in kept_by]
    assert done_in(walls, attacks, folder, victim.pid) == set()
    assert (folder / "reference.py").read_text(encoding="utf-8") == "kept"
    names = {attack.__name__ for attack in attacks}
    assert done_in(None, attacks, folder, victim.pid) == names, "an attack that cannot succeed shows nothing"


def leaves_files(_: int, folder: Path) -> bool:
    for parent in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.home()):
        (parent / f"left-by-{folder.name}").write_text("mine", encoding="utf-8")
    return True


def test_files_that_are_left_in_namespaces_are_gone(folder: Path) -> None:
    assert done_in(Walls.NAMESPACES, [leaves_files], folder) == {"leaves_files"}
    for parent in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.home()):
        assert not (parent / f"left-by-{folder.name}").exists()


def sees_nobody(_pid: int, _folder: Path) -> bool:
    return sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()) == [1, os.getpid()]


def has_no_capability(_pid: int, _folder: Path) -> bool:
    told = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    fields = dict(line.split(":\t", 1) for line in told.splitlines() if ":\t" in line)
    return fields["CapEff"] == fields["CapPrm"] == "0" * 16 and fields["NoNewPrivs"] == "1"


def reads_but_does_not_write(_: int, folder: Path) -> bool:
    readable = all(path.exists() for path in (folder / "reference.py", Path(sys.prefix), results_of(folder)))
    kernels = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/irq")
    return readable and not any(os.access(path, os.W_OK) for path in (folder, *kernels))


def may_not_read_its_init(_pid: int, _folder: Path) -> bool:
    try:
        Path("/proc/1/maps").read_bytes()
    except PermissionError:
        return Path("/proc/self/maps").read_bytes() != b""
    return False


def results_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-results") / "results.db"


def test_namespaces_show_their_own_processes_and_read_only_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results_of(folder).parent.mkdir()
    results_of(folder).touch()
    monkeypatch.setenv("TUNEBENCH_DB", str(results_of(folder)))
    looks = [sees_nobody, has_no_capability, reads_but_does_not_write, may_not_read_its_init]
    assert done_in(Walls.NAMESPACES, looks, folder) == {look.__name__ for look in looks}


def links_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-links")


def reads_by_the_name_of_a_link(_: int, folder: Path) -> bool:
    return (links_of(folder) / "packages" / "os.py").exists() and not (links_of(folder) / "home").exists()


def test_what_is_known_by_the_name_of_a_link_is_there_by_that_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = links_of(folder)
    links.mkdir()
    (links / "packages").symlink_to(Path(os.__file__).parent)
    (links / "home").symlink_to(Path.home())
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, links.iterdir()), os.environ["PATH"]]))
    assert done_in(Walls.NAMESPACES, [reads_by_the_name_of_a_link], folder) == {"reads_by_the_name_of_a_link"}


def compiles(_pid: int, _folder: Path) -> bool:
    with tempfile.TemporaryDirectory() as place:
        Path(place, "one.cpp").write_text("int one() { return 1; }", encoding="utf-8")
        subprocess.run(["g++", "-shared", "-o", "one.so", "one.cpp"], cwd=place, check=True)
        return bool(ctypes.CDLL(f"{place}/one.so"))


def names_a_thread(_pid: int, _folder: Path) -> bool:
    """CUDA's driver does, and cannot be used where it may not."""
    names = []

    def name() -> None:
        path = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        path.write_text("named", encoding="ascii")
        names.append(path.read_text(encoding="ascii"))

    thread = threading.Thread(target=name)
    thread.start()
    thread.join()
    return names == ["named\n"]


@pytest.mark.parametrize("walls", Walls)
def test_a_box_has_what_a_model_needs(walls: Walls, folder: Path) -> None:
    needs = [compiles, names_a_thread, starts_a_thread_and_a_process]
    assert done_in(walls, needs, folder) == {need.__name__ for need in needs}


def starts_a_thread_and_a_process(_pid: int, _folder: Path) -> bool:
    thread = threading.Thread(target=time.sleep, args=(0.01,))
    thread.start()
    thread.join()
    child = subprocess.Popen(["sleep", "60"])
    child.kill()
    return child.wait() == -signal.SIGKILL


def takes_all_memory(_pid: int, _folder: Path) -> bool:
    try:
        mmap.mmap(-1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), flags=mmap.MAP_PRIVATE)
    except OSError:
        return False
    return True


def starts_many_threads(_pid: int, _folder: Path) -> bool:
    """A thread counts as a process does, and takes less to start."""
    waiting = threading.Event()
    threads = [threading.Thread(target=waiting.wait, daemon=True) for _ in range(1500)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        return False
    return True


def fills_the_disk(_pid: int, _folder: Path) -> bool:
    with Path("/tmp/large").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 7)
    return True


def test_namespaces_have_limits(folder: Path) -> None:
    attacks = [takes_all_memory, fills_the_disk, starts_many_threads]
    assert done_in(Walls.NAMESPACES, attacks, folder) == set()


_PRINTS = """
from pathlib import Path
from test_box import prints_much, run_in
from tunebench.tuner.gate.boundary.box import Walls
for walls in (None, Walls.NAMESPACES, Walls.LANDLOCK):
    process = run_in(walls, prints_much, Path.cwd())
    assert process.connection.recv_bytes() == b"done"
    process.wait(10)
    process.close()
"""


def prints_much(connection: Connection) -> NoReturn:
    for descriptor in (1, 2):
        for number in range(50):
            os.write(descriptor, f"{descriptor}:{number} \x1b[2J\r\n".encode())
    connection.send_bytes(b"done")
    os._exit(0)


def test_output_on_every_descriptor_is_limited_and_plain(folder: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command, environment = [sys.executable, "-c", _PRINTS], {**os.environ, "PYTHONPATH": path}
    printed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    lines = [f"1:{number} ?[2J?" for number in range(MOST_LINES)]
    assert printed.stdout == ""
    assert [line for line in printed.stderr.splitlines() if not line.startswith("(")] == 3 * lines


def leaves_a_daemon(connection: Connection) -> NoReturn:
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    connection.send_bytes(str(Path("/proc/self/ns/pid").readlink()).encode())
    time.sleep(600)
    os._exit(0)


def namespaces() -> Iterator[str]:
    """Yield the PID namespace of each running process."""
    for process in Path("/proc").glob("[0-9]*/ns/pid"):
        with suppress(OSError):
            yield str(process.readlink())


def test_everything_in_a_box_ends_with_it(folder: Path) -> None:
    process = run_in(Walls.NAMESPACES, leaves_a_daemon, folder)
    own = process.connection.recv_bytes().decode()
    assert own in namespaces()
    process.close()
    assert own not in namespaces()


def beats(connection: Connection) -> NoReturn:
    if os.fork() == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        while True:
            connection.send_bytes(b".")
            time.sleep(0.01)
    time.sleep(600)
    os._exit(0)


@pytest.mark.slow
def test_a_box_stands_still_while_others_are_timed(folder: Path) -> None:
    process = run_in(Walls.NAMESPACES, beats, folder)
    with closing(process):
        assert process.connection.recv_bytes() == b"."
        for _ in range(3):
            process.stop()
            while process.connection.poll(0.5):
                process.connection.recv_bytes()
            process.go_on()
            assert process.connection.recv_bytes() == b"."


def ends(_connection: Connection, how: str) -> NoReturn:
    if how == "exit":
        os._exit(7)
    if how == "abort":
        os.abort()
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)
    os._exit(0)


@pytest.mark.parametrize("walls", [None, *Walls])
@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("abort", -signal.SIGABRT), ("signal", -signal.SIGSEGV)])
def test_the_judge_learns_how_a_process_ended(walls: Walls | None, how: str, code: int, folder: Path) -> None:
    process = run_in(walls, partial(ends, how=how), folder)
    with closing(process):
        assert process.wait(20) == code


def test_what_is_said_of_a_box() -> None:
    assert walls_for(Box.OFF) == (None,) and None not in walls_for(Box.REQUIRE)
    assert walls_for(Box.AUTO) == (*Walls, None)
    assert told(Box.AUTO, Walls.NAMESPACES, {}) == "boxed by namespaces"
    refused = {Walls.NAMESPACES: "Operation not permitted"}
    assert told(Box.AUTO, Walls.LANDLOCK, refused) == "boxed by Landlock (namespaces: Operation not permitted)"
    assert told(Box.OFF, None, {}) == "not boxed (--box off)"
    refused[Walls.LANDLOCK] = "Function not implemented"
    assert told(Box.AUTO, Walls.FILTER, refused) == (
        "not boxed (namespaces: Operation not permitted; Landlock: Function not implemented); "
        "a filter of system calls holds"
    )
