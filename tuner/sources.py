"""The sources of a kernel: in CUDA C++, in Triton, or one of each, between which a tunable chooses."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.space import SearchSpace
from tunebench.tuner.triton_source import TritonSource
from tunebench.tuner.users_code import MODEL_FILE
from tunebench.tuner.variant import KernelSource, Source

HEADERS = Path(__file__).parents[1] / "kernels" / "shared" / "include"
"""Device code that any source may include."""


class Language(enum.StrEnum):
    """The language of a source; the values of the tunable `source` of a kernel that has both."""

    CUDA = "cuda"
    TRITON = "triton"


SOURCE_TUNABLE = "source"
"""The tunable that chooses between two sources."""


def language_of(source: Source) -> Language:
    """Return the language of a source."""
    return Language.TRITON if isinstance(source, TritonSource) else Language.CUDA


def read_sources(path: Path, name: str, text: str | None) -> tuple[Source, ...]:
    """Return the sources of the kernel that a file declares, that in CUDA C++ first.

    Args:
        path: `model.py` in a folder, or one file.
        text: of the source in CUDA C++, where it is no file of its own.

    Raises:
        KernelFolderError: there is none, it has no entry point, or what it needs is elsewhere.
    """
    found: list[Source] = []
    file = path.parent / f"{name}.cu"
    is_folder = path.name == MODEL_FILE
    if text is not None or (is_folder and file.exists()):
        read = KernelSource.read(file, HEADERS, text)
        if not read.entry_points:
            what = 'write one as extern "C" __global__ void name(parameters)'
            raise KernelFolderError(f"{file if text is None else path}: no entry point; {what}")
        found.append(read)
    for python in (path.parent / f"{name}.py", path):
        if python.is_file() and (triton := TritonSource.read(name, python, python.read_text(encoding="utf-8"))):
            found.append(triton)
            break
    if not found:
        where = f"{path.parent}: no {file.name}" if is_folder else f"{path}: no source="
        raise KernelFolderError(
            f"{where} and no @triton.jit function; a kernel's source has its folder's name, or is in its one file"
        )
    return tuple(found)


def require_fitting(
    sources: Sequence[Source],
    space: SearchSpace,
    compiled_axes: Sequence[str],
    compiled_options: Mapping[str, tuple[str, ...]],
) -> None:
    """Refuse a space that does not fit the sources.

    Raises:
        KernelFolderError: nothing chooses between two of them, a constant has no value, or a tunable is none.
    """
    values = tuple(space.tunable(SOURCE_TUNABLE).values) if SOURCE_TUNABLE in space.names else ()
    if len(sources) > 1 and sorted(map(str, values)) != sorted(Language):
        raise KernelFolderError(
            f"{sources[0].file} and {sources[1].file} are two sources: choose between them by a tunable "
            f'Tunable("{SOURCE_TUNABLE}", ("{Language.CUDA}", "{Language.TRITON}"))'
        )
    known = [*compiled_axes, *(f"{name}_option" for name in compiled_options)]
    for source in sources:
        if isinstance(source, TritonSource):
            source.require_constants(space, known, alone=len(sources) == 1)
