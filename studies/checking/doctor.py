"""Diagnoses of this machine and of what will run where; and of what is wrong with a kernel's folder.

What needs torch is looked at last: importing it takes longer than all the rest, and may be what is wrong.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tunebench import __version__
from tunebench.db.connection.database import open_database
from tunebench.db.connection.engine import locate, name_of
from tunebench.db.queries.trials import count_rows
from tunebench.kernels.runtime.registry import kernel_names, load_model, place_of
from tunebench.kernels.runtime.shipped import ShippedFileError, files_of, is_stale, read_file
from tunebench.tuner.build import CompilerName
from tunebench.tuner.cache_folder import default_cache_folder
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import CompileError, DatabaseError, DatabaseMissingError, KernelFolderError, UserError
from tunebench.tuner.files import require_regular
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.isolation import report
from tunebench.tuner.kernel import differing_entries
from tunebench.tuner.problem import Problem
from tunebench.tuner.users_code import UsersCodeError, described
from tunebench.tuner.watched import watched

_PACKAGES = ("torch", "optuna", "sqlalchemy", "numpy", "cuda-core")


@dataclass(frozen=True)
class Diagnosis:
    """One line of the doctor's report.

    Attributes:
        works: whether it is here and usable.
        remedy: what to do where it is not; empty where it is.
    """

    subject: str
    works: bool
    detail: str
    remedy: str = ""


def examine(database: str | None) -> Iterator[Diagnosis]:
    """Look at packages, the database, the build cache, devices, compilers and what ships; changes nothing."""
    yield Diagnosis("tunebench", True, f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    yield _packages()
    yield _cache()
    yield _database(database)
    yield (torch := _torch())
    if torch.works:
        yield from _devices()
        yield from map(_compiler, CompilerName)
        yield _guards()
        yield from (_shipped(name, name) for name in kernel_names())


def examine_kernel(target: str) -> Iterator[Diagnosis]:
    """Look at a kernel's folder, one part after the other until one is wrong; compiles its default, runs nothing.

    Its Python runs in a process that may crash or hang. Whether the kernel computes what its reference computes is what
    `check` says.

    Args:
        target: the folder or file, or a shipped kernel's name.

    Raises:
        UnknownNameError: neither a shipped kernel nor a folder or file.
    """
    place = place_of(target)
    # A kernel made of a block has no source of its own; where another one lacks its own, the model's part says so.
    sources = [f"{place.resolve().name}{suffix}" for suffix in (".cu", ".py")]
    folder_has = ("reference.py", "model.py", *(name for name in sources if (place / name).exists()))
    names = (place.name,) if place.is_file() else folder_has
    try:
        for name in names:
            require_regular(place if place.is_file() else place / name)
    except KernelFolderError as error:
        yield Diagnosis("files", False, str(error))
        return
    missing = [] if place.is_file() else [name for name in names if not (place / name).is_file()]
    yield Diagnosis("files", not missing, ", ".join(missing or names), "write what is missing" if missing else "")
    if missing:
        return
    start_forkserver([__name__])
    found: list[Diagnosis] = []
    try:
        watched(place, "looking at it", _report_parts, target, listen=found.append)
    except UsersCodeError as error:
        found.append(Diagnosis(_PARTS[len(found)], False, str(error)))
    yield from found


_PARTS = ("reference", "model", "parameters", "problem", "default", "build", "shipped results")


def _report_parts(target: str) -> None:
    """Report each part of a folder until one is wrong."""
    looked = _KernelFolder(target)
    for part in _PARTS[:-1]:
        try:
            report(Diagnosis(part, True, getattr(looked, part)()))
            continue
        except CompileError as error:
            report(Diagnosis(part, False, str(error), "\n".join(error.log.splitlines()[:12])))
        except UserError as error:
            report(Diagnosis(part, False, str(error)))
        except FAILURES as error:
            remedy = f"looked at with tensors that have no memory; 'tunebench check {target}' runs it"
            report(Diagnosis(part, False, described(error), remedy))
        return
    report(_shipped(load_model(target).kernel.name, target))


class _KernelFolder:
    """The parts of a kernel's folder, to be looked at in order: what each says where it is well.

    Models and inputs are tensors without memory: sizes as large as those of KernelBench take no time.
    """

    def __init__(self, target: str) -> None:
        self._target = target

    def reference(self) -> str:
        """Whether it has KernelBench's form and makes a model and inputs."""
        import torch

        from tunebench.tuner.reference import load_reference

        self._nowhere = torch.device("meta")
        place = place_of(self._target)
        self._reference = load_reference(place if place.is_file() else place / "reference.py")
        self._original = self._reference.make_model(0, self._nowhere)
        self._inputs = self._reference.make_inputs(0, self._nowhere)
        return f"sizes {' '.join(f'{name}={size}' for name, size in self._reference.sizes.items())}"

    def model(self) -> str:
        """Whether it declares a kernel and is made like the reference."""
        model = load_model(self._target)
        self._kernel = model.kernel
        self._tuned: Any = self._reference.make_model(0, self._nowhere, model)
        return f"{self._kernel.name}: tunables {', '.join(self._kernel.space.names)}"

    def parameters(self) -> str:
        """Whether the model has the reference's parameters and buffers."""
        ours = self._tuned.state_dict()
        if differing := differing_entries(self._original.state_dict(), ours):
            raise UserError(
                f"ModelNew and Model differ in {differing}: give ModelNew those of Model, by the same names"
            )
        return f"{len(ours)}, as the reference has them"

    def problem(self) -> str:
        """Whether the kernel serves the reference's inputs."""
        model = self._kernel.modes[0].put(self._tuned)
        problem = model.identify(*self._inputs)
        if problem is None:
            raise UserError(f"the kernel does not serve the inputs that 'get_inputs' makes: {model.reason}")
        self._problem: Problem = problem
        return str(problem)

    def default(self) -> str:
        """Whether the default, or a configuration near it, is valid for the problem on this machine."""
        self._device = find_device()
        self._default = self._kernel.space.default_for(self._problem, self._device)
        return str(self._default)

    def build(self) -> str:
        """Whether the default compiles."""
        from tunebench.tuner.compile.building import build_plan
        from tunebench.tuner.compile.compilers import compiler_for

        compiler = compiler_for(self._device, None, self._kernel.languages)
        build_plan(self._kernel, self._default, self._problem, self._device, compiler)
        return f"the default, by {compiler.name} for {self._device}"


def _packages() -> Diagnosis:
    found, missing = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Diagnosis("packages", False, f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Diagnosis("packages", True, ", ".join(found))


def _cache() -> Diagnosis:
    folder = default_cache_folder()
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if there.is_dir() and os.access(there, os.W_OK):
        return Diagnosis("build cache", True, str(folder))
    remedy = "builds are not kept: set TUNEBENCH_CACHE to a folder of your own"
    return Diagnosis("build cache", False, f"{folder} cannot be written", remedy)


def _database(database: str | None) -> Diagnosis:
    try:
        where = name_of(locate(database))
        with open_database(database, read_only=True) as opened:
            studies, trials = count_rows(opened)
        return Diagnosis("database", True, f"{where}: {trials} trials in {studies} studies")
    except DatabaseMissingError:
        return Diagnosis("database", True, f"{where}: not there yet, the first study makes it")
    except DatabaseError as error:
        return Diagnosis("database", False, "not usable", str(error))


def _torch() -> Diagnosis:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Diagnosis("torch", False, f"does not import: {described(error)}", "install torch again: pytorch.org")
    cuda = torch.version.cuda
    return Diagnosis("torch", True, f"{torch.__version__}, " + (f"CUDA {cuda}" if cuda else "CPU build"))


def _devices() -> Iterator[Diagnosis]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        yield Diagnosis(f"cuda:{index}", True, f"{find_device(f'cuda:{index}')}; kernels run here, built by nvrtc")
    if not count:
        remedy = "nothing to do on a machine without an NVIDIA GPU"
        if torch.version.cuda is None:
            remedy += "; else install a CUDA build of torch"
        yield Diagnosis("cuda", False, "no CUDA device; nvrtc still compiles for any architecture", remedy)
    yield Diagnosis("cpu", True, f"{find_device('cpu')}; kernels run here, built by g++")


def _compiler(name: CompilerName) -> Diagnosis:
    from tunebench.tuner.compile.compilers import COMPILERS
    from tunebench.tuner.compile.nvrtc import NvrtcCompiler

    compiler = COMPILERS[name]()
    try:
        detail = compiler.version().splitlines()[0]
        if isinstance(compiler, NvrtcCompiler) and (left_out := compiler.left_out()):
            detail += f", without {' '.join(left_out)}, which it is too old for"
        return Diagnosis(f"compiler {name}", True, detail)
    except UserError as error:
        return Diagnosis(f"compiler {name}", False, "not usable", str(error))


def _guards() -> Diagnosis:
    """Report how a tuned model notices that something has changed since its last call."""
    from tunebench.kernels.runtime.guards import DOUBTS

    if not DOUBTS:
        return Diagnosis("change detection", True, "PyTorch's own guards, which notice every kind of change here")
    remedy = "answers are right; a call costs the host some microseconds more than with another Python or torch"
    return Diagnosis("change detection", False, "; ".join(DOUBTS), remedy)


def _shipped(name: str, target: str) -> Diagnosis:
    """Whether the results that ship with a kernel are of the kernel as it is now."""
    subject = f"shipped {name}"
    files = f"studies/files/shipped/{name}*.toml" if name == target else target
    remedy = f"tunebench tune {files} && tunebench ship {target}"
    kernel = load_model(target).kernel
    served = []
    for path in files_of(kernel):
        try:
            file = read_file(path)
        except ShippedFileError as error:
            return Diagnosis(subject, False, str(error), remedy)
        if is_stale(kernel, file):
            return Diagnosis(subject, False, f"{path.name} is of another version of the kernel: not served", remedy)
        served.append(f"{file.device}: {len(file.results)} problems")
    return Diagnosis(subject, True, ", ".join(served) or "no results ship with it")
