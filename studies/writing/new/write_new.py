"""Writes the folder of a new kernel, in a process of its own that may run the problem's code."""

from __future__ import annotations

import keyword
import re
import shutil
from dataclasses import replace
from pathlib import Path

from tunebench.kernels.runtime.installed import installed_names
from tunebench.kernels.runtime.registry import kernel_names
from tunebench.studies.writing.new.draft import BLOCKS
from tunebench.studies.writing.new.new_kernel import NewKernel
from tunebench.studies.writing.new.problem_text import SAMPLES
from tunebench.tuner.errors import UnknownNameError, UserError
from tunebench.tuner.files import read_text
from tunebench.tuner.fork_server import TRACER, start_forkserver
from tunebench.tuner.isolation import DeathError, run_isolated
from tunebench.tuner.scratch import scratch
from tunebench.tuner.watched import load_seconds

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
PRELOAD = (__name__, TRACER)
_LOADS = 1.5
"""Limit of all that runs the problem's own code, in times of what a user's files may take to load and answer once."""


def write_new(folder: Path, problem: Path | None = None, block: str | None = None) -> NewKernel:
    """Write the folder of a new kernel.

    Args:
        folder: must not be there yet; its name is the kernel's.
        problem: a file in KernelBench's form; None for a sample of the block.
        block: of `BLOCKS`; None for the one that the problem's layers and operations propose.

    Raises:
        UserError: the folder is there, its name cannot be a kernel's, or the problem cannot be read or run.
        UnknownNameError: there is no such block.
    """
    if block is not None and block not in BLOCKS:
        raise UnknownNameError("block", block, BLOCKS)
    _require_name(folder.name)
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} is there already: name a folder that is not")
    text = SAMPLES[block or "pointwise"].reference if problem is None else read_text(problem)
    start_forkserver(PRELOAD)
    with scratch() as place:
        try:
            seconds = _LOADS * load_seconds()
            made = run_isolated(seconds, _make, place / folder.name, problem or folder / "reference.py", text, block)
        except DeathError as death:
            raise UserError(f"{problem or 'the sample'}: it cannot be run: {death}") from death
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(place / folder.name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return replace(made, folder=folder)


def _require_name(name: str) -> None:
    """Refuse a name that no kernel of one's own can have.

    Raises:
        UserError: it is one.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"'{name}' cannot be a kernel's name: letters, digits and underscores, such as my_kernel")
    if keyword.iskeyword(name):
        raise UserError(f"'{name}' cannot be a kernel's name: it is a word of Python; choose another, such as {name}_1")
    if name in (*kernel_names(), *installed_names()):
        raise UserError(f"'{name}' is the name of a kernel that is there already: choose another, such as my_{name}")


def _make(folder: Path, problem: Path, text: str, block: str | None) -> NewKernel:
    """Fill a folder, as `make` does, in a process of its own."""
    # Importing Inductor asks the driver for a GPU: no fork of a server that had imported it could use one.
    from tunebench.studies.writing.new.make import make

    return make(folder, problem, text, block)
