"""Writes the folder of a new kernel: its reference, and the first of its drafts that agrees with that."""

from __future__ import annotations

import keyword
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunebench.kernels.runtime.installed import installed_names
from tunebench.kernels.runtime.registry import kernel_names
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.writing.new.check import Checked, check
from tunebench.studies.writing.new.core import Core
from tunebench.studies.writing.new.draft import BLOCKS, draft
from tunebench.studies.writing.new.hidden_names import hidden_names
from tunebench.studies.writing.new.problem_text import SAMPLES
from tunebench.studies.writing.new.trace import trace
from tunebench.studies.writing.new.write import model_text, texts_by_hand
from tunebench.tuner.errors import UnknownNameError, UserError
from tunebench.tuner.files import read_text
from tunebench.tuner.isolation import TRACER, DeathError, run_isolated, start_forkserver
from tunebench.tuner.reference import load_reference
from tunebench.tuner.scratch import scratch
from tunebench.tuner.watched import load_seconds

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
PRELOADED = (__name__, TRACER)
_LOADS = 1.5
"""Limit of all that runs the problem's own code, in times of what a user's files may take to load and answer once."""
_LEAST_SHARE = 0.01
"""Least share of the forward's time that the kernel has to take: a smaller one cannot be told from a tie."""


@dataclass(frozen=True)
class NewKernel:
    """A folder that was written.

    Attributes:
        block: the class of `tunebench.blocks` that the kernel is; empty where it is to be written by hand.
        left: the operations that torch still does, which the kernel's text does not have; empty where it has all.
        reason: why the kernel is to be written by hand; empty where it is not.
        hidden: why it is of no block that would do more, where that is for a name of the model's.
        checked: how the kernel was compared with its reference.
    """

    folder: Path
    block: str
    left: tuple[str, ...] = ()
    reason: str = ""
    hidden: str = ""
    checked: Checked = field(default_factory=Checked)


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
    start_forkserver(PRELOADED)
    with scratch() as place:
        try:
            seconds = _LOADS * load_seconds()
            made = run_isolated(seconds, make, place / folder.name, problem or folder / "reference.py", text, block)
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


# What follows runs in a process of its own: it runs the problem's code.


def make(folder: Path, problem: Path, text: str, block: str | None) -> NewKernel:
    """Fill a folder with the first draft of a problem that agrees with it, or with a kernel to be written by hand.

    Args:
        problem: the file that has the text.

    Raises:
        UserError: the problem cannot be run, or is for no kernel.
    """
    traced = trace(load_reference(problem, text=text))
    if hidden := hidden_names(traced.model, TunedModule):
        raise UserError(f"{problem}: its Model has a '{hidden[0]}' of its own, which every kernel has: rename it")
    source = "a sample" if problem.parent == folder else problem.name
    drafts = draft(traced, block)
    reasons = []
    for core in drafts.cores:
        _write(folder, {"reference.py": text, "model.py": model_text(folder.name, traced, core, source)})
        checked = check(folder, core.left_nodes)
        if not (why := checked.reason or why_nothing_is_gained(core, checked)):
            return NewKernel(folder, core.block, core.left, hidden=drafts.hidden, checked=checked)
        reasons.append(why)
    reason = [*reasons, drafts.reason][0]
    _write(folder, {"reference.py": text, **texts_by_hand(folder.name, traced, reason, source)})
    return NewKernel(folder, "", reason=reason)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def why_nothing_is_gained(core: Core, checked: Checked) -> str:
    """Why a kernel cannot be told from a tie, however fast it is; empty where it can."""
    share = checked.left_share
    if share is None or 1 - share >= _LEAST_SHARE:
        return ""
    done = ", ".join(dict.fromkeys(core.done))
    return f"a kernel of {done} alone would be {1 - share:.1%} of the forward's time"
