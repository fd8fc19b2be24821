"""Keeps the bytecode of modules where an installation keeps none, as most containers do not.

Each of a study's processes would otherwise compile the two thousand files of torch that it imports, for seconds.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def keep_bytecode(package: str = "torch") -> None:
    """Have this process, and those that it starts, keep bytecode in the cache folder, where Python keeps none.

    Nothing changes where a package's is there, or is written beside it, or where others may write into the folder.

    Args:
        package: whose bytecode is looked for, without importing it.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None or found.cached is None:
        return
    if not sys.dont_write_bytecode and os.access(Path(found.origin).parent, os.W_OK):
        return
    # Late, since most installations keep bytecode, and every command begins here.
    from tunebench.tuner.cache_folder import default_cache_folder
    from tunebench.tuner.files import made_private

    folder = default_cache_folder() / "bytecode"
    if sys.pycache_prefix != str(folder) and Path(found.cached).exists():
        return
    try:
        if not made_private(folder.parent) or not made_private(folder):
            return
    except OSError:
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder)
    sys.dont_write_bytecode = False
