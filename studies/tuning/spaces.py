"""The kernels that are here to tune, and the space of one for a problem."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tunebench.kernels.runtime.installed import installed_names
from tunebench.kernels.runtime.registry import is_kernel_file, kernel_names, load_model, place_of
from tunebench.studies.display.tables import values_of
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import StudyRequest
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import KernelFolderError, UserError
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.kernel import Kernel, Mode, TunableModel, prepare_model
from tunebench.tuner.problem import Problem
from tunebench.tuner.settings import under
from tunebench.tuner.space import SearchSpace
from tunebench.tuner.users_code import MODEL_FILE, users_code
from tunebench.tuner.watched import watched


@dataclass(frozen=True)
class FoundKernel:
    """A kernel that can be named to `tune`.

    Attributes:
        target: what names it: a name, or the path of a folder or file.
        kernel: None where it does not load.
        said: why it does not load; empty where it does.
    """

    target: str
    kernel: Kernel | None
    said: str = ""

    def values(self) -> dict[str, object]:
        """Plain values for `--json`."""
        kernel = self.kernel
        return {
            "target": self.target,
            "kernel": kernel.name if kernel else None,
            "path": str(kernel.path) if kernel else None,
            "modes": list(kernel.modes) if kernel else [],
            "dtypes": list(kernel.dtypes) if kernel else [],
            "sources": [source.file for source in kernel.sources] if kernel else [],
            "sizes": dict(kernel.reference().sizes) if kernel else {},
            "tunables": list(kernel.space.names) if kernel else [],
            "source_digest": kernel.digest if kernel else None,
            "error": self.said or None,
        }


def find_kernels(folder: Path | None = None) -> list[FoundKernel]:
    """The kernels that ship or are installed, and those below a folder."""
    targets = [*kernel_names(), *installed_names()]
    return [_found(target) for target in (*targets, *map(str, sorted(_below(folder)) if folder else ()))]


def declares_kernel(file: Path) -> bool:
    """Whether a Python file declares a kernel, and does not only hold the text of one; it is not run."""
    if not is_kernel_file(str(file)):
        return False
    try:
        tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return True  # it is a kernel that does not load, which has to be said
    return any(isinstance(one, ast.ClassDef) and one.name == "ModelNew" for one in tree.body)


def _below(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in files:
            file = Path(where) / name
            if name.endswith(".py") and declares_kernel(file):
                yield file.parent if name == MODEL_FILE else file


def _found(target: str) -> FoundKernel:
    try:
        return FoundKernel(target, load_model(target).kernel)
    except UserError as error:
        return FoundKernel(target, None, str(error).splitlines()[0])


@dataclass(frozen=True)
class DescribedSpace:
    """The space of a kernel for one problem on one device.

    Attributes:
        tunables: of each the values that `--json` prints.
        constraints: their names.
        valid: how many configurations are valid.
        default: the configuration that a study begins with.
    """

    kernel: str
    mode: Mode
    problem: Problem
    device: str
    tunables: Sequence[Mapping[str, Any]]
    constraints: Sequence[str]
    valid: int
    default: Configuration

    def values(self) -> dict[str, object]:
        """Plain values for `--json`."""
        names = ("kernel", "mode", "problem", "device", "default", "tunables", "constraints")
        return values_of(self, *names, valid_configurations=self.valid)


def describe_space(request: StudyRequest) -> list[DescribedSpace]:
    """A kernel's space for the problem that its reference's inputs make, in each mode.

    The Python of one that does not ship runs in a process that may crash or hang.

    Raises:
        UserError: the kernel cannot serve its reference's inputs, or no configuration is valid.
    """
    if request.kernel in kernel_names():
        return _describe(request)
    start_forkserver([__name__])
    return watched(place_of(request.kernel), "describing its space", _describe, request)


def _describe(request: StudyRequest) -> list[DescribedSpace]:
    resolved = resolve(request)
    kernel, device = resolved.kernel, resolved.device
    described = []
    for mode in resolved.modes:
        where = device.torch_device.type
        with (
            under(resolved.settings, where),
            users_code("the model cannot be made, or takes no such inputs", kernel.folder),
        ):
            made = prepare_model(resolved.reference, mode, device.torch_device, resolved.model)
            model = cast(TunableModel, made)
            problem = model.identify(*resolved.reference.make_inputs(1, device.torch_device))
        if not isinstance(problem, Problem):
            raise KernelFolderError(f"kernel '{kernel.name}' cannot serve its reference's inputs: {model.reason}")
        valid = resolved.space.enumerate(problem, device)
        default = valid[valid.default]
        tunables, constraints = _tunables(resolved.space), [one.name for one in resolved.space.constraints]
        described.append(
            DescribedSpace(kernel.name, mode, problem, device.name, tunables, constraints, len(valid), default)
        )
    return described


def _tunables(space: SearchSpace) -> list[Mapping[str, Any]]:
    return [
        {
            "name": one.name,
            "values": list(one.values),
            "default": space.default[one.name],
            "conditional": one.when is not None,
            "host": one.host,
        }
        for one in space.tunables
    ]
