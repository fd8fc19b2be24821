"""Two versions of the same Python in one process: each revision's kernels are imported with its own modules.

A kernel's folder is a package of its own by its path (`kernels/runtime/folders.py`), so that two versions of it stand
beside each other. What it imports by name from its repository is looked for in its revision's files, and forgotten when
another revision is imported: the kernel keeps the modules it has imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tunebench import kernels
from tunebench.kernels.runtime import registry
from tunebench.studies.checking.regress.repository import Revision
from tunebench.tuner import sources
from tunebench.tuner.errors import UserError

_KERNELS = f"{kernels.__name__}."
_RUNTIME = registry.__name__.rpartition(".")[0]


@contextmanager
def modules_of(revision: Revision) -> Iterator[None]:
    """Import what is in a repository from a revision's files, from now on; called in a process that is there for it.

    In tunebench's own repository these are kernels, blocks and what kernels share; all else is the running tunebench's.

    Raises:
        UserError: the block has imported something from the working tree where another revision was asked for.
    """
    root, repository = revision.root, revision.repository
    is_own = (root / "kernels" / "runtime" / "tuned_module.py").is_file()
    for name in [*sys.modules]:
        is_kernels = name.startswith(_KERNELS) and not f"{name}.".startswith(f"{_RUNTIME}.")
        if (is_own and is_kernels) or name in _own_modules:
            del sys.modules[name]
    _own_modules.clear()
    if is_own:
        kernels.__path__ = [str(root / "kernels")]
        sources.HEADERS = root / "kernels" / "shared" / "include"
    sys.path[:] = [_moved(entry, repository, root) for entry in _path()]
    importlib.invalidate_caches()
    before = {*sys.modules}
    yield
    for name in sys.modules.keys() - before:
        file = Path(getattr(sys.modules[name], "__file__", None) or sys.prefix).resolve()
        if name.startswith("tunebench.") or not (_is_below(file, root) or _is_below(file, repository)):
            continue
        _own_modules.add(name)
        if not file.is_relative_to(root):
            raise UserError(
                f"it imports '{name}' from {repository}, and not from the revision: install that package without "
                "links to the working tree, or put its folder on PYTHONPATH"
            )


_own_modules: set[str] = set()
"""Names that were imported for the revision before."""


@cache
def _path() -> list[str]:
    """Python's search path as it was when the process began."""
    return sys.path.copy()


def _moved(entry: str, repository: Path, root: Path) -> str:
    """The same place of the search path in the revision's files."""
    place = Path(entry).resolve()  # of no text, the current folder
    return str(root / place.relative_to(repository)) if _is_below(place, repository) else entry


def _is_below(place: Path, root: Path) -> bool:
    """Whether a place is one of a repository's own, and not of a Python environment that stands in it."""
    environments = (one for one in map(Path, (sys.prefix, sys.base_prefix)) if one.is_relative_to(root))
    inside = place.is_relative_to(root) and not any(place.is_relative_to(one) for one in environments)
    return inside and not {"site-packages", "dist-packages"} & set(place.parts)
