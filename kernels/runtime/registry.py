"""Finds kernels: the shipped ones by name, anyone's by folder."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tunebench.tuner.errors import KernelFolderError, UnknownNameError

if TYPE_CHECKING:
    from tunebench.kernels.runtime.tuned_module import TunedModule

_SHIPPED = Path(__file__).parent.parent


def kernel_names() -> list[str]:
    """The kernels that ship with tunebench."""
    return sorted(path.parent.name for path in _SHIPPED.glob("*/model.py"))


def load_model(target: str) -> type[TunedModule]:
    """The `ModelNew` of a shipped kernel's name or of a kernel folder's path.

    Raises:
        UnknownNameError: neither a shipped kernel nor a folder; the message has the nearest names.
        KernelFolderError: the folder is not a kernel's.
    """
    if target in kernel_names():
        return _model_of(importlib.import_module(f"tunebench.kernels.{target}.model"), target)
    folder = Path(target)
    try:
        is_folder = folder.is_dir()
    except OSError:
        # Such as a name that is too long for a file.
        is_folder = False
    if not is_folder:
        raise UnknownNameError("kernel", target, kernel_names())
    path = folder.resolve() / "model.py"
    if not path.exists():
        raise KernelFolderError(f"{folder}: no model.py; a kernel's folder has reference.py, model.py and its .cu")
    name = f"tunebench_kernel_{path.parent.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, NameError, AttributeError) as error:
        raise KernelFolderError(f"{path}: does not import: {error}") from error
    return _model_of(module, target)


def _model_of(module: object, target: str) -> type[TunedModule]:
    from tunebench.kernels.runtime.tuned_module import TunedModule

    model = getattr(module, "ModelNew", None)
    if not (isinstance(model, type) and issubclass(model, TunedModule) and hasattr(model, "kernel")):
        raise KernelFolderError(f"{target}: model.py has no ModelNew(TunedModule) with a `kernel`")
    return model
