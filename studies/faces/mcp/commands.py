"""Runs a command of tunebench in a folder of its own, and gives back what `--json` prints.

The command is a process: its progress is what it says on standard error, and cancelling ends it with all that it has
started, everything done recorded, as Ctrl-C does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
from anyio import to_thread

from tunebench.studies.serving.commands import ANSWER, CACHES, answer_of, environment_in
from tunebench.tuner.command import memory_file, running
from tunebench.tuner.errors import UserError

Say = Callable[[float, float | None, str], Awaitable[None]]
"""Told of progress: how far, of how much where that is known, and a line for people."""

STATE = ".tunebench"
"""The folder, in the working folder, of what can be made again."""

_TEMPORARY = "temporary"

_OF = re.compile(r"^\s*(\d+)/(\d+)\s")
_ENDING_SECONDS = 20.0


class Commands:
    """Runs commands, those that time something one after another.

    Args:
        folder: nothing is written outside of it, but for the lock of a GPU, which the whole machine shares.

    Raises:
        UserError: the folder is none, or cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        try:
            for name in ("", _TEMPORARY, *CACHES.values()):
                (self.folder / STATE / name).mkdir(mode=0o700, exist_ok=True)
            self._temporary = os.open(self.folder / STATE / _TEMPORARY, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise UserError(f"{folder}: cannot be the working folder: {error.strerror}") from error
        self._alone = anyio.Lock()

    async def ask(self, command: str, **arguments: object) -> object:
        """Run a quick command and return what it prints with `--json`.

        Args:
            arguments: of the command's function, where None is none.

        Raises:
            UserError: the question was wrong, in one line.
            TunebenchError: the command could not go on, in one line.
        """
        return await self._run(command, arguments, _say_nothing)

    async def work(self, say: Say, command: str, **arguments: object) -> object:
        """The same of a command that takes long: it waits for the one before it, and says how far it is."""
        await say(0.0, None, "waiting for what runs before it" if self._alone.locked() else "starting")
        async with self._alone:
            return await self._run(command, arguments, say)

    async def _run(self, name: str, arguments: Mapping[str, object], say: Say) -> object:
        asked = json.dumps([name, arguments], default=str).encode()
        said: list[str] = []
        with (
            memory_file(asked) as reads,
            memory_file() as prints,
            running(
                ANSWER, self.folder, self._environment(), stdin=reads, stdout=prints, stderr=subprocess.PIPE
            ) as process,
        ):
            assert process.stderr is not None
            try:
                while line := await to_thread.run_sync(process.stderr.readline, abandon_on_cancel=True):
                    said.append(line.decode(errors="replace").removesuffix("\n"))
                    await say(*_progress(said[-1], len(said)))
                code = await to_thread.run_sync(process.wait, abandon_on_cancel=True)
            finally:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(_end, process)
            prints.seek(0)
            return answer_of(code, prints.read().decode(errors="replace"), said)

    def _environment(self) -> Mapping[str, str]:
        return {
            **environment_in(self.folder / STATE),
            "TUNEBENCH_DB": str(self.folder / "tunebench.db"),
            # Sockets are made there, whose names have to be short, wherever the folder is.
            "TMPDIR": f"/proc/{os.getpid()}/fd/{self._temporary}",
        }


async def _say_nothing(_done: float, _total: float | None, _text: str) -> None:
    pass


def _progress(line: str, number: int) -> tuple[float, float | None, str]:
    """How far a line says that a command is: trials of trials, else lines."""
    if found := _OF.match(line):
        return float(found[1]), float(found[2]), line.strip()
    return float(number), None, line.strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, and whatever of its group is left."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.terminate()  # nothing where it has ended
        process.wait(_ENDING_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
