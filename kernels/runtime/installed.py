"""Kernels that installed packages ship, by the entry points of the group `tunebench.kernels`.

    [project.entry-points."tunebench.kernels"]
    rms_norm = "my_package.rms_norm.model"

The name is the kernel's, the value the module that defines its `ModelNew`: a folder's `model.py`, or a kernel in one
file.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.users_code import MODEL_FILE, users_code

GROUP = "tunebench.kernels"


def installed_names() -> list[str]:
    """Return the kernels of installed packages."""
    return sorted(set(entry_points(group=GROUP).names))


def import_installed(name: str) -> ModuleType:
    """Return the module of an installed kernel.

    Raises:
        KernelFolderError: two packages have a kernel of this name, or the module is not there.
        UsersCodeError: whatever the module raises.
    """
    entry = _entry(name)
    with users_code("does not import", place_of_installed(name)):
        return importlib.import_module(entry.module)


def place_of_installed(name: str) -> Path:
    """Return the folder of an installed kernel, or the file of one in one file.

    Raises:
        KernelFolderError: two packages have a kernel of this name, or the module is not there.
    """
    entry = _entry(name)
    try:
        found = importlib.util.find_spec(entry.module)
    except (ImportError, ValueError) as error:
        raise KernelFolderError(f"{_told(entry)}: no module '{entry.module}': {error}") from error
    if found is None or found.origin is None:
        raise KernelFolderError(f"{_told(entry)}: no module '{entry.module}'")
    file = Path(found.origin)
    return file.parent if file.name == MODEL_FILE else file


def _entry(name: str) -> EntryPoint:
    found = list(dict.fromkeys(entry_points(group=GROUP, name=name)))
    if len(found) > 1:
        packages = " and ".join(sorted(_package(entry) for entry in found))
        raise KernelFolderError(f"kernel '{name}' is in {packages}: name the folder of the one that is meant")
    return found[0]


def _told(entry: EntryPoint) -> str:
    return f"kernel '{entry.name}' of package {_package(entry)}"


def _package(entry: EntryPoint) -> str:
    return "?" if entry.dist is None else entry.dist.name
