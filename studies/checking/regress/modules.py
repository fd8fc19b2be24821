"""Two versions of the same Python in one process: each revision's kernels are imported with its own modules.

A kernel's folder is a package of its own by its path (`kernels/runtime/folders.py`), so that two versions of it stand
beside each other. What it imports by name from its repository is looked for in its revision's files, and forgotten
afterwards: the kernel keeps the modules it has imported, and the next revision gets its own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunebench import kernels
from tunebench.kernels.runtime import folders
from tunebench.tuner import sources
from tunebench.tuner.errors import UserError

_RUNTIME = "tunebench.kernels.runtime"
_KERNELS = "tunebench.kernels."


@contextmanager
def modules_of(root: Path, repository: Path) -> Iterator[None]:
    """Import what is in a repository from a revision's files, for as long as the block runs.

    In tunebench's own repository these are kernels, blocks and what kernels share; all else is the running tunebench's.

    Raises:
        UserError: something was imported from the working tree where another revision was asked for.
    """
    path, kernels_path, headers = list(sys.path), list(kernels.__path__), sources.HEADERS
    is_own = (root / "kernels" / "runtime" / "tuned_module.py").is_file()
    _forget(root, repository, is_own=is_own)
    sys.path[:] = [_moved(entry, repository, root) for entry in path]
    if is_own:
        kernels.__path__ = [str(root / "kernels")]
        sources.HEADERS = root / "kernels" / "shared" / "include"
    importlib.invalidate_caches()
    try:
        yield
        if root != repository and (name := _from_elsewhere(repository, root)):
            raise UserError(
                f"it imports '{name}' from {repository}, and not from the revision: install that package without "
                "links to the working tree, or put its folder on PYTHONPATH"
            )
    finally:
        _forget(root, repository, is_own=is_own)
        sys.path[:], kernels.__path__, sources.HEADERS = path, kernels_path, headers


def _moved(entry: str, repository: Path, root: Path) -> str:
    """The same place of the search path in the revision's files."""
    place = Path(entry).resolve()  # of no text, the current folder
    return str(root / place.relative_to(repository)) if _is_below(place, repository) else entry


def _forget(root: Path, repository: Path, *, is_own: bool) -> None:
    """Take the repository's modules out of those that are imported."""
    for name in list(sys.modules):
        if _is_versioned(name, is_own=is_own) and (name.startswith(_KERNELS) or _is_in(name, root, repository)):
            del sys.modules[name]


def _is_versioned(name: str, *, is_own: bool) -> bool:
    """Whether a module may be there in two versions: not what compares them, nor kernels, which are there by path."""
    if name == "__main__" or name.startswith(folders.__name__):
        return False
    if name == "tunebench" or name.startswith("tunebench."):
        return is_own and name.startswith(_KERNELS) and name != _RUNTIME and not name.startswith(f"{_RUNTIME}.")
    return True


def _is_in(name: str, *roots: Path) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    return file is not None and any(_is_below(Path(file).resolve(), root) for root in roots)


def _is_below(place: Path, root: Path) -> bool:
    """Whether a place is one of a repository's own, and not of a Python environment that stands in it."""
    environments = (one for one in map(Path, (sys.prefix, sys.base_prefix)) if one.is_relative_to(root))
    inside = place.is_relative_to(root) and not any(place.is_relative_to(one) for one in environments)
    return inside and not {"site-packages", "dist-packages"} & set(place.parts)


def _from_elsewhere(repository: Path, root: Path) -> str | None:
    """A module that came from the working tree."""
    own = (name for name in list(sys.modules) if _is_versioned(name, is_own=False))
    return next((name for name in own if _is_in(name, repository) and not _is_in(name, root)), None)
