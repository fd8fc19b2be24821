"""Fills the folder of a new kernel: its reference, and the first of its drafts that agrees with that.

It runs the problem's code, and so in a process of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.writing.loops.around import passes_around
from tunebench.studies.writing.loops.lower import UnloweredError
from tunebench.studies.writing.loops.write import write
from tunebench.studies.writing.new.check import Rewrite, check
from tunebench.studies.writing.new.core import Core
from tunebench.studies.writing.new.draft import draft
from tunebench.studies.writing.new.hidden_names import hidden_names
from tunebench.studies.writing.new.new_kernel import NewKernel
from tunebench.studies.writing.new.trace import Traced, trace
from tunebench.studies.writing.new.write import model_text, texts_by_hand
from tunebench.tuner.errors import UserError
from tunebench.tuner.reference import Reference, load_reference

PASSES = "Passes"
"""The block of a kernel that is passes over loop nests alone."""


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
    reasons: list[str] = []
    unlowered: list[str] = []
    # A block that does all of it is best, then passes around a block, then passes alone, which are tuned freely.
    attempts = [partial(_of_block, traced, core, source) for core in drafts.cores if core.is_whole]
    around = [core for core in drafts.cores if not core.is_whole]
    attempts += [partial(_of_block_and_passes, traced, core, source) for core in around if not core.is_minor]
    if block is None:
        attempts.append(partial(_of_passes, traced, source))
    attempts += [partial(_of_block_and_passes, traced, core, source) for core in around if core.is_minor]
    for made in _drafts(attempts, folder.name, unlowered):
        _write(folder, {"reference.py": text, **made.files})
        checked = check(folder, made.rewrite)
        if not checked.reason:
            return NewKernel(folder, made.block, hidden=drafts.hidden, checked=checked)
        reasons.append(checked.reason)
    untraced = [drafts.reason] if traced.graph is None else []
    reason = next(filter(None, [*untraced, *reasons, drafts.hidden, *unlowered, drafts.reason]))
    _write(folder, {"reference.py": text, **texts_by_hand(folder.name, traced, reason, source)})
    return NewKernel(folder, "", reason=reason)


def _drafts(attempts: Iterable[Callable[[str], _Draft]], name: str, reasons: list[str]) -> Iterator[_Draft]:
    """Yield what attempts write; reasons why others write nothing are added."""
    for attempt in attempts:
        try:
            yield attempt(name)
        except UnloweredError as error:
            reasons.append(f"no loop nest has {error}")


@dataclass(frozen=True)
class _Draft:
    """The files of a kernel that is to be checked.

    Attributes:
        block: as of `NewKernel`.
        rewrite: writes it at other sizes, where it has those of the problem alone.
    """

    files: Mapping[str, str]
    block: str
    rewrite: Rewrite | None = None


def _of_block(traced: Traced, core: Core, source: str, name: str) -> _Draft:
    return _Draft({"model.py": model_text(name, traced, core, source)}, core.block)


def _of_passes(traced: Traced, source: str, name: str) -> _Draft:
    if len(traced.inputs) != len(traced.names):
        raise UnloweredError("another number of arguments than get_inputs() gives")
    inputs = dict(zip(traced.names, traced.inputs, strict=True))
    written = write(name, traced.model, inputs, source, traced.defaults, traced.dtypes)
    rewrite = partial(_rewritten, lambda other: _of_passes(other, source, name))
    return _Draft({"model.py": written.model, f"{name}.cu": written.source}, PASSES, rewrite=rewrite)


def _of_block_and_passes(traced: Traced, core: Core, source: str, name: str) -> _Draft:
    made = passes_around(traced, core.given, core.last, layout=core.layout)

    def again(other: Traced) -> _Draft:
        cores = [one for one in draft(other, None).cores if (one.block, one.last) == (core.block, core.last)]
        if not cores:
            raise UserError("another kernel at smaller sizes")
        return _of_block_and_passes(other, cores[0], source, name)

    files = {"model.py": model_text(name, traced, core, source, made), f"{name}.cu": made.source}
    return _Draft(files, f"{core.block} and passes", rewrite=partial(_rewritten, again))


def _rewritten(make_draft: Callable[[Traced], _Draft], reference: Reference, folder: Path) -> Path:
    """Write a kernel at a reference's sizes into a folder."""
    try:
        files = make_draft(trace(reference)).files
    except UnloweredError as error:
        raise UserError(f"no loop nest has {error}") from error
    _write(folder, {"reference.py": reference.text, **files})
    return folder


def _write(folder: Path, files: Mapping[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
