"""The first lines of what a process prints, which alone are passed on, to standard error."""

from __future__ import annotations

import codecs
import ctypes
import logging
import os
import threading

MOST_LINES = 20
"""Limit of the lines that are shown of what one process prints."""

PIPE_BYTES = 1 << 16
_MOST_LETTERS = 20_000
_NOISY_LOGGERS = ("torch._subclasses.fake_tensor", "torch.utils.cpp_extension")
"""Loggers of torch: what they print with a traceback is raised as well, or is that there is no GPU."""
_BY_LINE = 1
"""C's _IOLBF."""


def limit_output() -> None:
    """Let the first lines through that are printed here, to standard error: a kernel's printf comes with every call."""
    print_by_line()
    quiet_torch()
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading,), daemon=True).start()


def quiet_torch() -> None:
    """Have torch not print what it raises."""
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def print_by_line() -> None:
    """Have C's standard output hold no more than a line: a process may end without a word."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _BY_LINE, 0)


class FirstLines:
    """Passes the first lines of what is printed on to standard error, without what controls a terminal."""

    def __init__(self) -> None:
        self._lines = self._letters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, printed: bytes) -> None:
        """Pass on as much of this as may still be shown."""
        if self._is_full:
            return
        shown = ""
        for letter in self._decoder.decode(printed):
            self._lines += letter == "\n"
            self._letters += 1
            shown += letter if letter.isprintable() or letter in "\t\n" else "?"
            if self._is_full:
                shown = shown.removesuffix("\n") + "\n(no more of what is printed here is shown)\n"
                break
        os.write(2, shown.encode())

    @property
    def _is_full(self) -> bool:
        return self._lines >= MOST_LINES or self._letters >= _MOST_LETTERS


def _pass_on(reading: int) -> None:
    lines = FirstLines()
    while printed := os.read(reading, PIPE_BYTES):
        lines.take(printed)
