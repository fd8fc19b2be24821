"""A command of tunebench in a process and a folder of its own, for programs that run one for somebody else."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunebench.tuner.command import memory_file, running
from tunebench.tuner.errors import TunebenchError, UserError

# -P: what lies in the folder is not taken for modules of tunebench or of what it needs.
ANSWER = (sys.executable, "-P", "-m", "tunebench", "answer")
"""The program that reads a command's name and arguments as JSON, and prints JSON."""

CACHES = {
    "TUNEBENCH_CACHE": "builds",
    "XDG_CACHE_HOME": "cache",
    "XDG_DATA_HOME": "data",
    "XDG_CONFIG_HOME": "config",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}
"""Where tunebench, torch, Triton and the driver keep what can be made again, by the variable that says so."""

_ANSWERS = (0, 1)
_ELSEWHERE = ", or say where with --db"  # no client can: the database is the folder's

_MOST_PRINTED = 1 << 26
_MOST_SAID = 1 << 16


def environment_in(folder: Path) -> dict[str, str]:
    """Return the variables by which a command keeps its database and its caches in a folder."""
    # This process's folder may be another than the command's.
    path = os.pathsep.join(
        str(Path(one).resolve()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one
    )
    places = {name: str(folder / place) for name, place in CACHES.items()}
    return {**places, "PYTHONDONTWRITEBYTECODE": "1", **({"PYTHONPATH": path} if path else {})}


def run_in(folder: Path, seconds: float, name: str, arguments: Mapping[str, object]) -> object:
    """Run a command in a folder of its own and return what it prints with `--json`.

    Raises:
        UserError: the question was wrong, in one line.
        TunebenchError: the command could not go on, in one line.
    """
    # Sockets: under /proc, nobody else can open what they are at the other end of, and read or replace what is printed.
    with (
        memory_file(json.dumps([name, arguments]).encode()) as reads,
        _Listening(_MOST_PRINTED) as prints,
        _Listening(_MOST_SAID) as says,
    ):
        try:
            with running(
                ANSWER, folder, environment_in(folder), stdin=reads, stdout=prints.theirs, stderr=says.theirs
            ) as process:
                code = process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise TunebenchError(f"no answer after {seconds:g} s") from error
        return answer_of(code, prints.heard(), says.heard().splitlines())


def answer_of(code: int, printed: str, said: Sequence[str]) -> object:
    """Return what a command has answered.

    Args:
        said: the lines on its standard error.

    Raises:
        UserError, TunebenchError: nothing; the message is the line that it ended with.
    """
    if code in _ANSWERS:
        with contextlib.suppress(ValueError):
            return json.loads(printed)
    line = next((one for one in reversed(said) if one.startswith("tunebench: ")), "")
    text = line.removeprefix("tunebench: ").removesuffix(_ELSEWHERE) or f"the command ended with exit code {code}"
    raise (UserError if code == 2 else TunebenchError)(text)


class _Listening:
    """Reads what a process writes to a socket while it runs, and keeps the last bytes of it.

    Args:
        most: the number of bytes.
    """

    def __init__(self, most: int) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._most = most
        self._bytes = bytearray()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> _Listening:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def theirs(self) -> int:
        """The descriptor for the process."""
        return self._theirs.fileno()

    def heard(self) -> str:
        """Return it, once the process has ended: what it leaves running is not waited for."""
        self._end()
        return self._bytes.decode(errors="replace")

    def _listen(self) -> None:
        while part := self._ours.recv(1 << 16):
            self._bytes += part
            del self._bytes[: -self._most]

    def _end(self) -> None:
        if self._thread.is_alive():
            self._ours.shutdown(socket.SHUT_RD)
            self._thread.join()
        self._ours.close()
        self._theirs.close()
