"""One program through NVRTC: in this process, or by `main` in one of its own, for which this imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OUTPUT = "variant.cubin"
"""The file that `main` writes in its folder."""


class RefusedError(Exception):
    """NVRTC refused the source; the message is its log."""


def compile_program(text: str, name: str, headers: Mapping[str, str], options: Sequence[str]) -> tuple[bytes, str]:
    """Return a cubin, and NVRTC's log. Other Python threads run meanwhile.

    Args:
        name: of the source, for messages.
        headers: text by the name that the source, or one of them, includes.
        options: NVRTC's.

    Raises:
        RefusedError: the source was refused.
    """
    from cuda.bindings import nvrtc

    texts, names = [_encoded(one) for one in headers.values()], [_encoded(one) for one in headers]
    program = _checked(nvrtc.nvrtcCreateProgram(_encoded(text), _encoded(name), len(headers), texts, names))
    try:
        given = [_encoded(option) for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        said = bytes(log).decode(errors="replace").replace("\0", "").strip()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RefusedError(said or status.name)
        code = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code), said
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _checked(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if status.value:
        raise RefusedError(f"NVRTC: {status.name}")
    return values[0] if values else None


def _encoded(text: str) -> bytes:
    return text.encode()


def main(**program: Any) -> None:
    """Compile what the request says: the cubin into a file, the log to standard output; exit code 1 for a refusal."""
    try:
        code, log = compile_program(**program)
    except RefusedError as refusal:
        sys.stdout.write(str(refusal))
        sys.exit(1)
    Path(OUTPUT).write_bytes(code)
    sys.stdout.write(log)
