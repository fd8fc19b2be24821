"""Builds ahead of first use: into the build cache, or into a bundle."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunebench.kernels.runtime.choices_file import read_choices
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.kernels.runtime.selection import what_is_known
from tunebench.kernels.runtime.shipped import is_stale, readable_files
from tunebench.tuner.build import Build
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.bundle import BundledBuild, files_of_bundle, write_bundle
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import default_compiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, any_gpu, find_device
from tunebench.tuner.errors import CompileError, DatabaseMissingError, UserError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.typed_json import parse
from tunebench.tuner.variant import Variant


@dataclass(frozen=True)
class BuiltAhead:
    """One variant, built ahead.

    Attributes:
        compiler: builds it.
        problems: those that it may serve.
        build: None where it could not be built.
        refusal: why it could not be built; None where it was.
    """

    kernel: Kernel
    compiler: Compiler
    variant: Variant
    problems: tuple[Problem, ...] = ()
    build: Build | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class _Asked:
    """A problem in a file that somebody wrote."""

    kernel: str
    axes: dict[str, int]
    dtype: str = field(default_factory=lambda: "float32")
    options: dict[str, str] = field(default_factory=dict)


Told = Callable[[BuiltAhead], None]
"""Called with each variant as its build ends."""


def warm(
    targets: Sequence[str] = (),
    *,
    problems: Path | None = None,
    device: str | None = None,
    architecture: str | None = None,
    told: Told = lambda _: None,
) -> list[BuiltAhead]:
    """Build into the build cache what the runtime would choose for the problems.

    Args:
        targets: kernels' names or folders; none for all shipped kernels.
        problems: a file of problems (see `read_problems`); None for all that results are known of.
        device: `cuda`, `cuda:INDEX` or `cpu`; None for a GPU if there is one.
        architecture: build for GPUs of this architecture, such as `sm_90`, which need not be here.

    Raises:
        UserError: the question was wrong, nothing is known to build, or the compiler is not here.
    """
    devices = [find_device(device)] if architecture is None else [_device_for(architecture)]
    return _build(_needed(targets, devices, problems), told)


def bundle(
    folder: Path,
    targets: Sequence[str] = (),
    *,
    problems: Path | None = None,
    architectures: Sequence[str] = (),
    told: Told = lambda _: None,
) -> list[BundledBuild]:
    """Write binaries that need no compiler where they run, with an index.

    Args:
        targets, problems: as of `warm`.
        architectures: such as `sm_90`, none of which need be here; none for that of the GPU here, or of the CPU.

    Raises:
        UserError: the question was wrong, nothing is known to build, a build was refused, or the folder cannot be
            written.
    """
    files_of_bundle(folder)  # before anything takes long
    devices = [_device_for(one) for one in architectures] or [find_device(None)]
    built = _build(_needed(targets, devices, problems), told)
    if refused := [one for one in built if one.refusal is not None]:
        raise UserError(f"{refused[0].kernel.name} for {refused[0].variant.architecture}: {refused[0].refusal}")
    return write_bundle(folder, [(one.kernel.digest, one.variant, one.build) for one in built if one.build is not None])


def read_problems(path: Path) -> dict[str, list[tuple[Problem, Configuration | None]]]:
    """Problems by the name of their kernel, with the configuration that was saved for each, if any was.

    The file is JSON: what `tunebench.save_choices` wrote, or a list with a problem's `kernel`, `axes`, `dtype` and
    `options`.

    Raises:
        UserError: it cannot be read, or is none.
    """
    found: dict[str, list[tuple[Problem, Configuration | None]]] = {}
    try:
        content = json.loads(path.read_bytes())
        for choice in read_choices(path) if isinstance(content, dict) else ():
            saved = None if choice.configuration is None else Configuration(choice.configuration)
            found.setdefault(choice.kernel, []).append((choice.problem, saved))
        for entry in () if isinstance(content, dict) else parse(list[_Asked], path.read_bytes()):
            found.setdefault(entry.kernel, []).append((Problem(entry.axes, entry.dtype, entry.options), None))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        expected = 'choices that tunebench.save_choices wrote, or a list of {"kernel": …, "axes": …, "dtype": …}'
        raise UserError(f"{path}: no file of problems ({error}): give {expected}") from error
    return found


def _device_for(architecture: str) -> Device:
    return find_device("cpu") if architecture in ("cpu", platform.machine()) else any_gpu(architecture)


def _needed(targets: Sequence[str], devices: Sequence[Device], file: Path | None) -> list[BuiltAhead]:
    """Return the variants that may be used for the problems, each once; none is built yet."""
    asked = None if file is None else read_problems(file)
    names = targets or (kernel_names() if asked is None else sorted(asked))
    found: dict[str, BuiltAhead] = {}
    for name in names:
        kernel = load_model(name).kernel
        for device in devices:
            known = asked or {kernel.name: [(problem, None) for problem in _known_problems(kernel, device)]}
            for problem, saved in known.get(kernel.name, ()):
                for configuration in _configurations(kernel, problem, device, saved):
                    variant = kernel.variant(configuration, problem, device.architecture)
                    compiler = default_compiler(device, kernel.languages).of(variant)
                    needed = found.get(variant.digest) or BuiltAhead(kernel, compiler, variant)
                    found[variant.digest] = replace(needed, problems=(*needed.problems, problem))
    if not found:
        where = " or ".join(device.name for device in devices)
        if file is not None:
            raise UserError(f"{file}: it has no problem of {', '.join(names)}" if names else f"{file}: it is empty")
        raise UserError(f"{', '.join(names)}: no result is known on {where}: name problems (--problems)")
    return list(found.values())


def _configurations(
    kernel: Kernel, problem: Problem, device: Device, saved: Configuration | None
) -> list[Configuration]:
    """Return the configurations of a problem: the saved one, else the evidence's, else its duel's contenders."""
    if wrong := _misfit(kernel, problem):
        raise UserError(f"{problem} is no problem of {kernel.name}: {wrong}")
    try:
        if saved is not None and kernel.space.admits(saved, problem, device):
            return [saved]
        known = what_is_known(kernel, problem, device)
        evidence = known.evidence()
        choices = known.contenders() if evidence is None else [evidence]
    except (KeyError, UserError) as error:  # a constraint or a variant asks for what the problem does not say
        raise UserError(f"{problem} is no problem of {kernel.name}: {error}") from error
    return [choice.configuration for choice in choices if choice.configuration is not None]


def _misfit(kernel: Kernel, problem: Problem) -> str:
    """Return why no model of the kernel meets the problem; empty where one may."""
    modes = [mode.value for mode in kernel.modes]
    if empty := [name for name, size in problem.axes.items() if size < 1]:
        return f"'{empty[0]}' is {problem.axes[empty[0]]}, and nothing empty is served by a kernel"
    if problem.dtype not in kernel.dtypes:
        return f"its dtypes are {', '.join(kernel.dtypes)}"
    if len(modes) > 1 and problem.options.get("mode") not in modes:
        return f"its option 'mode' is one of {', '.join(modes)}"
    return ""


def _known_problems(kernel: Kernel, device: Device) -> list[Problem]:
    """Return the problems that the database or the files beside the kernel have results of, on that kind of device."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.trials import best

    found: dict[str, Problem] = {}
    for file in readable_files(kernel):
        if file.architecture == device.architecture and not is_stale(kernel, file):
            found |= {result.problem.key: result.problem for result in file.results}
    try:
        with open_database(read_only=True) as database:
            rows = best(database, kernel=kernel.name, source_digest=kernel.digest, architecture=device.architecture)
    except DatabaseMissingError:
        rows = []
    found |= {row.problem.key: row.problem for row in rows}
    return list(found.values())


def _build(needed: Sequence[BuiltAhead], told: Told) -> list[BuiltAhead]:
    cache = BuildCache()
    for one in needed:
        one.compiler.version()  # refuses a compiler that is not here before anything is built

    def built(one: BuiltAhead) -> BuiltAhead:
        try:
            return replace(one, build=cache.build(one.compiler, one.variant))
        except CompileError as error:
            return replace(one, refusal=str(error))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        builds = [threads.submit(built, one) for one in needed]
        try:
            for build in as_completed(builds):
                told(build.result())
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return [build.result() for build in builds]
