"""Kernels in folders of one's own, as modules: `tunebench.kernels.runtime.folders.<the folder's path in hexadecimal>`.

The name says where the module is, so that a class from it, or an object of that class, can be pickled by reference and
found again by another process, as one from any installed module.
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

__path__: list[str] = []
"""What makes Python look for modules below this one: with the finder below, there being no folder."""


def import_folder(folder: Path) -> ModuleType:
    """Run a folder's `model.py`, again where it ran before: it may have been edited.

    Raises:
        Exception: whatever the file raises.
    """
    name = f"{__name__}.{os.fsencode(folder.resolve()).hex()}"
    sys.modules.pop(name, None)
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
            file = Path(os.fsdecode(bytes.fromhex(name))) / "model.py"
        except ValueError:
            return None
        return importlib.util.spec_from_file_location(fullname, file)


sys.meta_path.append(_Finder())
