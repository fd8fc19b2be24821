"""Calls of the C library that Python has no names for."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def asked(answer: int) -> int:
    """Return a call's answer.

    Raises:
        OSError: it has failed.
    """
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
