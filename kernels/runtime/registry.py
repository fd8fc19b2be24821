"""Finds kernels: shipped and installed ones by name, anyone's by folder; and knows what version of a shipped one is."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import re
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tunebench.kernels.runtime.folders import import_kernel
from tunebench.kernels.runtime.installed import import_installed, installed_names, place_of_installed
from tunebench.tuner.cache_folder import default_cache_folder
from tunebench.tuner.errors import KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.files import path_named, require_regular
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.isolation import is_watched
from tunebench.tuner.users_code import MODEL_FILE, users_code
from tunebench.tuner.watched import watched

if TYPE_CHECKING:
    from tunebench.db.queries.rows import MissRow, TrialRow
    from tunebench.kernels.runtime.tuned_module import TunedModule
    from tunebench.tuner.kernel import Kernel

Row = TypeVar("Row", bound="TrialRow | MissRow")

_BASE = "tunebench.kernels.runtime.tuned_module"
"""The module that every kernel imports; importing it takes long."""

_SHIPPED = Path(__file__).parent.parent
_DECLARES = re.compile(r"\bKernel\.declare\(|^class \w+\([^)]*\bblocks\.\w+", re.MULTILINE)
"""The pattern that a Python file contains where it declares a kernel."""
_WHAT_MAKES_A_DIGEST = ("kernel.py", "running_text.py", "signature.py", "sources.py", "triton_source.py", "variant.py")
_SOURCES = (".py", ".cu", ".cuh", ".h", ".hpp")


def kernel_names() -> list[str]:
    """Return the kernels that ship with tunebench."""
    return sorted(path.parent.name for path in _SHIPPED.glob("*/model.py"))


def load_model(target: str) -> type[TunedModule]:
    """Return the `ModelNew` of a kernel; one that does not ship is first loaded in a process that may crash or hang.

    Raises:
        UserError: see `import_model`; or what is loaded crashes, hangs, or ends its process.
    """
    if target not in kernel_names() and not is_watched():
        place = place_of(target)
        files = [file for file in (place.glob("*.py") if place.is_dir() else [place]) if file.exists()]
        _try(target, place, tuple((file, file.stat().st_mtime_ns) for file in files))
    return import_model(target)


@cache
def _try(target: str, place: Path, _state: tuple[object, ...]) -> None:
    """Load a kernel in another process, once for each state of its files.

    Raises:
        UserError: see `load_model`.
    """
    start_forkserver([_BASE])
    importlib.import_module(_BASE)  # while the server does
    watched(place, "loading it", _load_quietly, target)


def _load_quietly(target: str) -> None:
    """Run all that `import_model` and `Kernel.reference` do; what it prints, the next that loads it prints again."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        model = import_model(target)
        with contextlib.suppress(UserError):
            model.kernel.reference()


def import_model(target: str) -> type[TunedModule]:
    """Return the `ModelNew` of a kernel, in this process.

    Args:
        target: the name of a shipped kernel or of an installed package's, or the path of a kernel's folder or of a
            kernel in one file.

    Raises:
        UnknownNameError: none of these; the message has the nearest names.
        KernelFolderError: the folder, file or module is not a kernel's.
    """
    if target in kernel_names():
        model = _model_of(importlib.import_module(f"tunebench.kernels.{target}.model"), target)
        _remember(target, model)
        return model
    if target in installed_names():
        model = _model_of(import_installed(target), target)
        if model.kernel.name != target:
            raise KernelFolderError(f"{model.kernel.path}: the kernel '{model.kernel.name}' is installed as '{target}'")
        return model
    place = place_of(target)
    path = place.resolve() if place.is_file() else place.resolve() / MODEL_FILE
    for file in (path, path.parent / "reference.py"):
        require_regular(file)
    if not path.exists():
        raise KernelFolderError(
            f"{place}: no {MODEL_FILE}; a kernel's folder has reference.py, {MODEL_FILE} and its .cu"
        )
    if path.name == MODEL_FILE and not (path.parent / "reference.py").exists():
        raise KernelFolderError(
            f"{place}: no reference.py; a kernel's folder has reference.py, {MODEL_FILE} and its .cu"
        )
    with users_code("does not import", place):
        module = import_kernel(place)
    return _model_of(module, target)


def is_kernel_file(target: str) -> bool:
    """Return whether this is a Python file that declares a kernel, found without running it."""
    path = path_named(target)
    with contextlib.suppress(OSError):  # whoever reads it has the words for it
        if path is not None and path.suffix == ".py" and path.is_file():
            return _DECLARES.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    return False


def place_of(target: str) -> Path:
    """Return the folder of a shipped or installed kernel, the folder itself, or the file of a kernel in one file.

    Raises:
        UnknownNameError: none of these; the message has the nearest names.
        KernelFolderError: a Python file without a kernel.
    """
    if target in kernel_names():
        return _SHIPPED / target
    if target in installed_names():
        return place_of_installed(target)
    place = path_named(target)
    if place is not None:
        if place.is_dir() or is_kernel_file(target):
            return place
        if place.suffix == ".py" and place.is_file():
            raise KernelFolderError(f"{place}: {_what_to_do_with(place)}")
    raise UnknownNameError("kernel", target, [*kernel_names(), *installed_names()])


def _what_to_do_with(file: Path) -> str:
    """Return the next step for a user who named a Python file that declares no kernel."""
    text = file.read_text(encoding="utf-8", errors="replace")
    name = file.stem if file.stem.isidentifier() else "my_kernel"
    begin = f"'tunebench new {name}_kernel --from {file}' makes a kernel of it"
    if re.search(r"^(class|def) ModelNew\b|^ModelNew =", text, re.MULTILINE):
        return f"a submission, with nothing to tune: 'tunebench check {file}' judges it, {begin}"
    if re.search(r"^class Model\b", text, re.MULTILINE):
        return f"a problem, with nothing to tune yet: {begin}"
    return "no kernel: it has neither `Kernel.declare(` nor a block (docs/blocks.md)"


def target_of(kernel: Kernel) -> str:
    """Return the name or path that `load_model` finds a kernel by: a path where the kernel does not ship."""
    if kernel.name in kernel_names() and (_SHIPPED / kernel.name).resolve() == kernel.folder.resolve():
        return kernel.name
    return str(kernel.place.resolve())


def of_current_kernels(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of their kernel as it is now; a kernel that does not ship keeps all of its rows."""
    digests = {name: digest_of(name) for name in {row.kernel for row in rows} & set(kernel_names())}
    return [row for row in rows if digests.get(row.kernel, row.source_digest) == row.source_digest]


def digest_of(name: str) -> str:
    """Return the digest of a shipped kernel as it is now (`Kernel.digest`).

    Asking the kernel itself imports torch, which takes seconds: where this was done before for the same files, the
    answer is read from the cache folder.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _digest_file(name).read_text(encoding="ascii")
    return load_model(name).kernel.digest


def _remember(name: str, model: type[TunedModule]) -> None:
    """Keep a kernel's digest for `digest_of`; a folder that cannot be written costs time alone."""
    file = _digest_file(name)
    with contextlib.suppress(OSError):
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", encoding="ascii", dir=file.parent, delete=False) as partial:
                partial.write(model.kernel.digest)
            Path(partial.name).replace(file)


def _digest_file(name: str) -> Path:
    """Return where the digest of a kernel with these very files is kept; every file that it could depend on counts."""
    files = [_SHIPPED.parent / "tuner" / file for file in _WHAT_MAKES_A_DIGEST]
    for folder in (_SHIPPED / name, _SHIPPED / "shared", _SHIPPED / "blocks"):
        files += sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES)
    state = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        state.update(f"{file.relative_to(_SHIPPED.parent)} {len(content)}\n".encode() + content)
    return default_cache_folder() / "digests" / state.hexdigest()


def _model_of(module: object, target: str) -> type[TunedModule]:
    from tunebench.kernels.runtime.tuned_module import TunedModule

    model = getattr(module, "ModelNew", None)
    if not (isinstance(model, type) and issubclass(model, TunedModule) and hasattr(model, "kernel")):
        raise KernelFolderError(f"{target}: it has no ModelNew(TunedModule, Model) with a `kernel`")
    if missing := ", ".join(sorted(model.__abstractmethods__)):
        raise KernelFolderError(f"{model.kernel.path}: ModelNew has no {missing}")
    return model
