"""Folders of submissions, such as KernelBench's run directories, and the problem of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tunebench.kernels.runtime.registry import is_kernel_file
from tunebench.studies.checking.request import CheckRequest
from tunebench.tuner.errors import UserError
from tunebench.tuner.users_code import MODEL_FILE

TextFile = tuple[Path, str]
"""A file's path and its text."""

_SAMPLE = re.compile(r"level_(\d+)_problem_(\d+)_sample_\d+_kernel\.py")
"""How KernelBench's `generate_samples.py` calls what a model has written for a problem."""


def is_submission(target: str) -> bool:
    """Whether this is a file with any model in it, and not a kernel with configurations."""
    return Path(target).suffix == ".py" and not is_kernel_file(target)


def is_run_folder(target: str) -> bool:
    """Whether this is a folder with files to judge, and not a kernel's."""
    folder = Path(target)
    return folder.is_dir() and not (folder / MODEL_FILE).exists()


def requests_for(targets: Sequence[str], request: CheckRequest) -> tuple[CheckRequest, ...]:
    """A request for each target, and for each file with a `ModelNew` in each folder, by name.

    Args:
        request: what stands for all of them. In its folder of problems are the references that it does not name: a
            file such as `level_1_problem_23_sample_0_kernel.py` is of `level1/23_….py`, any other of the file of its
            own name there.

    Raises:
        UserError: a folder has nothing to judge, or there is no such folder of problems.
    """
    problems = None if request.problems is None else Path(request.problems)
    if problems is not None and not problems.is_dir():
        raise UserError(f"{problems}: no such folder; name KernelBench's, with level1/1_….py in it")
    return tuple(
        replace(
            request,
            target=one,
            reference=_reference_of(Path(one), problems) if request.reference is None else request.reference,
        )
        for target in targets
        for one in (_files_in(Path(target)) if is_run_folder(target) else (target,))
    )


def _files_in(folder: Path) -> Sequence[str]:
    found = [path for path in folder.glob("*.py") if "ModelNew" in path.read_text(encoding="utf-8", errors="replace")]
    if not found:
        raise UserError(f"{folder}: neither a kernel's folder ({MODEL_FILE}) nor one with files that have a ModelNew")
    return [str(path) for path in sorted(found, key=_in_order)]


def _in_order(path: Path) -> list[str | int]:
    """Numbers in a name by their size."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


def _reference_of(file: Path, problems: Path | None) -> str | None:
    """The reference's file; where it is missing, the name that it would have. None where the file has its own."""
    if problems is None or file.suffix != ".py":
        return None
    if (sample := _SAMPLE.fullmatch(file.name)) is None:
        same_name = problems / file.name
        return str(same_name) if same_name.is_file() else None
    level, number = sample.groups()
    folders = [folder / f"level{level}" for folder in (problems, problems / "KernelBench")]
    found = [path for folder in folders for path in folder.glob(f"{number}_*.py")]
    return str(found[0] if found else folders[0] / f"{number}_*.py")
