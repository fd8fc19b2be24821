"""Kernels of one's own, as modules: `tunebench.kernels.runtime.folders.<the path in hexadecimal>`.

The name says where the module is, so that a class from it, or an object of that class, can be pickled by reference and
found again by another process, as one from any installed module. A folder is a package whose own module is `model.py`,
so that this imports what is beside it: `from .reference import Model`.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tunebench.tuner.users_code import MODEL_FILE

__path__: list[str] = []
"""Makes Python look for modules below this one, with the finder below, although there is no folder."""


def import_kernel(path: Path) -> ModuleType:
    """Run a folder's `model.py`, or a file, again where it ran before: it may have been edited.

    Raises:
        Exception: whatever the file raises.
    """
    name = f"{__name__}.{os.fsencode(path.resolve()).hex()}"
    for one in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
        del sys.modules[one]
    importlib.invalidate_caches()
    return importlib.import_module(name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        parent, _, name = fullname.rpartition(".")
        if parent != __name__:
            return None
        try:
            place = Path(os.fsdecode(bytes.fromhex(name)))
        except ValueError:
            return None
        if place.suffix == ".py" and place.is_file():
            return importlib.util.spec_from_file_location(fullname, place)
        beside = [str(place)]
        return importlib.util.spec_from_file_location(fullname, place / MODEL_FILE, submodule_search_locations=beside)


sys.meta_path.append(_Finder())
