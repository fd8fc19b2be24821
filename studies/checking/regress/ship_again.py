"""Results of an edited kernel that hold all the same: where the winner's machine code is what it was, so is its time.

An edit makes a kernel another version, and what shipped with it stale. Most edits leave most winners' code alone, as a
new choice of a tunable does. Both versions of each winner are compiled here, which needs no GPU, and what ships again
is what an assembler cannot tell apart.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.shipped import (
    ShippedFile,
    ShippedResult,
    file_for,
    is_stale,
    readable_files,
    still_good,
    write_file,
)
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.checking.regress.modules import modules_of
from tunebench.studies.checking.regress.repository import Revision, Side, repository_of, revisions
from tunebench.studies.tuning.for_problem import UnfitProblemError, identified
from tunebench.tuner.build import Build
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import any_gpu, is_gpu
from tunebench.tuner.errors import CompileError, UserError
from tunebench.tuner.isolation import run_isolated
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.variant import KernelSource, Variant

_SECONDS = 120.0
_TEXT = ".text."
_NOTHING = KernelSource("nothing", 'extern "C" __global__ void nothing() {}', {})

_Shipped = tuple[ShippedFile, Sequence[Variant | None]]
"""A file with the variants of its results, where they are no reference."""


@dataclass(frozen=True)
class Renewal:
    """The outcome of one file that shipped at the revision.

    Attributes:
        path: the file that was written; None where nothing of it holds.
        renewed: problems whose results ship again, or that got another identity.
        changed: those whose winner is other code now, or no configuration of the kernel any more, or was the reference.
    """

    kernel: str
    device: str
    path: Path | None
    renewed: tuple[Problem, ...]
    changed: tuple[Problem, ...]


def ship_again(model: type[TunedModule], revision: str) -> list[Renewal]:
    """Ship what shipped with a kernel at a revision of its repository, where the winners' machine code is the same.

    What was shipped since, for the kernel as it is, stays. All problems get the identity that their calls have now.

    Args:
        revision: of git: a commit, a branch, a tag.

    Raises:
        UserError: the kernel is in no repository, the revision is unknown, nothing for GPUs shipped with it there, the
            folder cannot be written, or pyelftools is not installed.
        CompilerMissingError: NVRTC is not installed.
    """
    kernel = model.kernel
    repository = repository_of(kernel.folder)
    place = str(kernel.place.resolve().relative_to(repository))
    with revisions(repository, revision, None) as both:
        base = both[Side.BASE]
        before = run_isolated(_SECONDS, _shipped_at, base, place)
    if not before:
        raise UserError(f"nothing shipped with {kernel.name} for a GPU at {base}: name a revision where it did")
    return [_renewed(model, file, variants, base) for file, variants in before]


def _shipped_at(revision: Revision, place: str) -> list[_Shipped]:
    """Return the results that shipped for GPUs at a revision; called in a process of its own."""
    with modules_of(revision):
        kernel = load_model(str(revision.root / place)).kernel
    files = [file for file in readable_files(kernel) if not is_stale(kernel, file) and is_gpu(file.architecture)]

    def variant(file: ShippedFile, one: ShippedResult) -> Variant | None:
        values = one.configuration
        return None if values is None else kernel.variant(Configuration(values), one.problem, file.architecture)

    return [(file, [variant(file, one) for one in file.results]) for file in files]


def _renewed(
    model: type[TunedModule], file: ShippedFile, variants: Sequence[Variant | None], base: Revision
) -> Renewal:
    kernel = model.kernel
    shipped = still_good(kernel, file_for(kernel, file.device))
    present = [_identified(model, file, result) for result in shipped]
    anew = [now.problem for result, now in zip(shipped, present, strict=True) if result != now]
    since = {result.problem.key for result in present}
    renewed: list[ShippedResult] = []
    changed: list[Problem] = []
    for one, variant in zip(file.results, variants, strict=True):
        result = _identified(model, file, one)
        if result.problem.key in since:
            continue
        if not is_stale(kernel, file):
            renewed.append(result)
            continue
        configuration = None if variant is None else _same_code(kernel, variant, result)
        if configuration is None:
            changed.append(result.problem)
        else:
            conditions = {**result.conditions, "same_code_as": base.commit}
            renewed.append(replace(result, configuration=dict(configuration), conditions=conditions))
    if not (renewed or present):
        return Renewal(kernel.name, file.device, None, (), tuple(changed))
    path = write_file(kernel, file.device, file.architecture, [*present, *renewed], keeps=False)
    return Renewal(kernel.name, file.device, path, (*anew, *(one.problem for one in renewed)), tuple(changed))


def _identified(model: type[TunedModule], file: ShippedFile, result: ShippedResult) -> ShippedResult:
    """Return a result with its problem's call as it is identified now; as it is where that cannot be found out."""
    try:
        problem = identified(model, result.problem, "cuda" if is_gpu(file.architecture) else "cpu")
    except UnfitProblemError:
        return result
    return replace(result, options=dict(problem.options))


def _same_code(kernel: Kernel, before: Variant, result: ShippedResult) -> Configuration | None:
    """The configuration as the kernel has it now, where every function there was is the same machine code.

    One that returned at once, as those of another choice of the configuration do, may be gone.
    """
    # What a constraint would say depends on a device, which need not be here; whoever loads the file asks it.
    space = replace(kernel.space, constraints=())
    was, architecture = Configuration(result.configuration or {}), before.architecture
    now = space.completed(was, result.problem, any_gpu(architecture))
    if now is None or any(now.get(name) != value for name, value in was.items()):
        return None
    compiler = NvrtcCompiler()
    try:
        old = compiler.compile(before)
        new = compiler.compile(kernel.variant(now, result.problem, architecture))
    except CompileError:
        return None
    own = {name: code for name, code in _instructions(old).items() if code != _of_nothing(architecture)}
    figures = {name: one for name, one in old.figures.items() if f"{_TEXT}{name}" in own}
    same = own.items() <= _instructions(new).items() and figures.items() <= new.figures.items()
    return now if same else None


@cache
def _of_nothing(architecture: str) -> bytes:
    """The instructions of a function that returns at once."""
    (code,) = _instructions(NvrtcCompiler().compile(Variant(_NOTHING, "", architecture))).values()
    return code


def _instructions(build: Build) -> dict[str, bytes]:
    """By function of a cubin."""
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError as error:
        raise UserError("--same-code-as reads binaries with pyelftools: pip install 'tunebench[elf]'") from error

    sections = ELFFile(io.BytesIO(build.code)).iter_sections()
    return {section.name: section.data() for section in sections if section.name.startswith(_TEXT)}
