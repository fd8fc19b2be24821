"""What is on this machine, and what will run where."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tunebench.db.connection.database import open_database
from tunebench.db.connection.engine import locate, name_of
from tunebench.db.queries.trials import count_rows
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.kernels.runtime.shipped import ShippedFileError, files_of, is_stale, read_file
from tunebench.kernels.shared import cudnn_graph
from tunebench.tuner.build import CompilerName
from tunebench.tuner.compile.cache import default_cache_folder
from tunebench.tuner.compile.compilers import COMPILERS
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import DatabaseError, DatabaseMissingError, UserError


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        works: whether the thing is here and usable.
        remedy: what to do where it is not; empty where it is.
    """

    subject: str
    works: bool
    detail: str
    remedy: str = ""


def examine(database: str | None) -> list[Finding]:
    """Look at torch, devices, compilers, the build cache and the database; changes nothing."""
    cuda = torch.version.cuda
    findings = [Finding("torch", True, f"{torch.__version__}, " + (f"CUDA {cuda}" if cuda else "CPU build"))]
    findings += _devices()
    findings += [_compiler(name) for name in CompilerName]
    findings.append(_cudnn_graph())
    findings += [Finding("build cache", True, str(default_cache_folder())), _database(database)]
    findings += [_shipped(name) for name in kernel_names()]
    return findings


def _shipped(name: str) -> Finding:
    """Whether the results that ship with a kernel are of the kernel as it is now."""
    subject, remedy = f"shipped {name}", f"tunebench tune studies/files/shipped/{name}*.toml && tunebench ship {name}"
    kernel = load_model(name).kernel
    served = []
    for path in files_of(kernel):
        try:
            file = read_file(path)
        except ShippedFileError as error:
            return Finding(subject, False, str(error), remedy)
        if is_stale(kernel, file):
            return Finding(subject, False, f"{path.name} is of another version of the kernel: not served", remedy)
        served.append(f"{file.device}: {len(file.results)} problems")
    return Finding(subject, True, ", ".join(served) or "no results ship with it")


def _devices() -> list[Finding]:
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        device = find_device(f"cuda:{index}")
        found.append(Finding(f"cuda:{index}", True, f"{device}; kernels run here, built by nvrtc"))
    if not found:
        remedy = "nothing to do on a machine without an NVIDIA GPU"
        if torch.version.cuda is None:
            remedy += "; else install a CUDA build of torch"
        found.append(Finding("cuda", False, "no CUDA device; nvrtc still compiles for any architecture", remedy))
    found.append(Finding("cpu", True, f"{find_device('cpu')}; kernels run here, built by g++"))
    return found


def _cudnn_graph() -> Finding:
    """Whether kernels may choose cuDNN's graph API."""
    subject = "cuDNN's graph API"
    if not cudnn_graph.is_installed():
        return Finding(subject, False, "a choice of conv_min_add_mul on NVIDIA GPUs", "pip install 'tunebench[cudnn]'")
    return Finding(subject, True, "a choice of conv_min_add_mul on NVIDIA GPUs")


def _compiler(name: CompilerName) -> Finding:
    try:
        return Finding(f"compiler {name}", True, COMPILERS[name]().version().splitlines()[0])
    except UserError as error:
        return Finding(f"compiler {name}", False, "not usable", str(error))


def _database(database: str | None) -> Finding:
    try:
        where = name_of(locate(database))
        with open_database(database, read_only=True) as opened:
            studies, trials = count_rows(opened)
        return Finding("database", True, f"{where}: {trials} trials in {studies} studies")
    except DatabaseMissingError:
        return Finding("database", True, f"{where}: not there yet, the first study makes it")
    except DatabaseError as error:
        return Finding("database", False, "not usable", str(error))
