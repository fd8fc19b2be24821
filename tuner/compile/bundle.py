"""Bundles: folders of binaries that need no compiler where they run, with an index of what they are.

What is in a bundle is run, so that only files are read that this user or root alone can have written, and each has to
be what the index says.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tunebench.tuner.build import Build, CompilerName, KernelFigures
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import UserError
from tunebench.tuner.files import is_written_by, open_itself, whole_file
from tunebench.tuner.typed_json import parse
from tunebench.tuner.variant import Variant

VARIABLE = "TUNEBENCH_BUNDLE"
"""The environment variable that names a bundle."""

INDEX = "index.json"
_FORMAT = 1
_SUFFIX = {CompilerName.CPU: ".so", CompilerName.NVRTC: ".cubin", CompilerName.TRITON: ".triton"}

_named: str | None = None


@dataclass(frozen=True)
class BundledBuild:
    """One binary of a bundle.

    Attributes:
        kernel, kernel_digest: what it is of: a kernel's name, and which version of it.
        source_digest, variant_digest: of the sources, and of all that determines the binary.
        architecture: what it runs on, such as `sm_90`.
        processor: the very instruction sets that it needs beyond that; empty for a GPU.
        compiler, compiler_version: what made it, and how long that took, seconds.
        entry_points: what the compiler says of each, by name.
        file, bytes, sha256: the binary: its name in the bundle, its size and digest.
    """

    kernel: str
    kernel_digest: str
    source_digest: str
    variant_digest: str
    architecture: str
    processor: str
    compiler: str
    compiler_version: str
    seconds: float
    entry_points: dict[str, KernelFigures]
    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Index:
    format: int
    builds: list[BundledBuild]


class BundleError(UserError):
    """A bundle that cannot be read, or is not one."""


def write_bundle(folder: Path, builds: Iterable[tuple[str, Variant, Build]]) -> list[BundledBuild]:
    """Write builds, each with its kernel's digest, in place of what the bundle had.

    Of what was there only the files go that the bundle's own index lists.

    Raises:
        UserError: the folder has something else in it, or cannot be written.
    """
    before = files_of_bundle(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for kernel_digest, variant, build in builds:
            file = f"{variant.source.name}-{variant.architecture}-{variant.digest[:16]}{_SUFFIX[build.compiler]}"
            written.append(
                BundledBuild(
                    kernel=variant.source.name,
                    kernel_digest=kernel_digest,
                    source_digest=variant.source.digest,
                    variant_digest=variant.digest,
                    architecture=variant.architecture,
                    processor=_processor(build.compiler),
                    compiler=build.compiler.value,
                    compiler_version=build.compiler_version,
                    seconds=round(build.seconds, 3),
                    entry_points=dict(build.figures),
                    file=file,
                    bytes=len(build.code),
                    sha256=hashlib.sha256(build.code).hexdigest(),
                )
            )
            with whole_file(folder / file) as stream:
                stream.write(build.code)
        with whole_file(folder / INDEX) as stream:
            stream.write(json.dumps(asdict(_Index(_FORMAT, written)), indent=1).encode() + b"\n")
        for name in before - {one.file for one in written}:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from error
    return written


def files_of_bundle(folder: Path) -> set[str]:
    """Return the names of a bundle's binaries, by its index, which a new one replaces; none of an empty folder.

    Raises:
        UserError: the folder has something in it and is no bundle, or cannot be read.
    """
    try:
        if not folder.exists() or not any(folder.iterdir()):
            return set()
        names = {one.file for one in _builds_in(folder, (folder / INDEX).read_bytes())}
    except (FileNotFoundError, BundleError) as error:
        raise UserError(
            f"{folder}: neither empty nor a bundle of this tunebench: name another folder, or remove this one"
        ) from error
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from error
    return {name for name in names if Path(name).name == name and name.endswith(tuple(_SUFFIX.values()))}


def read_bundle(folder: Path) -> list[BundledBuild]:
    """Read a bundle's index.

    Raises:
        BundleError: there is no bundle, or others than its user could have written it.
    """
    try:
        return _builds_in(folder, _read_private(folder / INDEX))
    except OSError as error:
        raise BundleError(f"{folder}: no bundle: {INDEX}: {error.strerror or error}") from error


def _builds_in(folder: Path, index: bytes) -> list[BundledBuild]:
    """Return what the text of a bundle's index says.

    Raises:
        BundleError: it is none, or another version's.
    """
    try:
        if json.loads(index)["format"] != _FORMAT:
            raise BundleError(f"{folder}: a bundle of another version of tunebench: write it again")
        return parse(_Index, index).builds
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(
            f"{folder}: damaged: {INDEX} is not what 'tunebench bundle' writes: write it again"
        ) from error


def use_bundle(folder: str | Path | None) -> None:
    """Take binaries from this bundle from now on, before the build cache and without a compiler; None for none.

    It takes the place of `$TUNEBENCH_BUNDLE`.

    Raises:
        BundleError: there is no bundle, or others than its user could have written it.
    """
    global _named  # noqa: PLW0603 - it is the program's
    if folder is not None:
        read_bundle(Path(folder))
    _named = "" if folder is None else str(folder)
    _index.cache_clear()
    _warn_once.cache_clear()


def find_bundled(compiler: CompilerName, variant: Variant) -> Build | None:
    """Return a variant's build from the bundle in use; warn once of what is stale or damaged, and pass it over."""
    name = os.environ.get(VARIABLE, "") if _named is None else _named
    if not name:
        return None
    folder = Path(name)
    same_kernel = _index(folder).get((compiler, variant.source.name, variant.architecture), [])
    for one in same_kernel:
        if one.variant_digest == variant.digest:
            return _loaded(folder, one, variant)
    if same_kernel and all(one.source_digest != variant.source.digest for one in same_kernel):
        _warn_once(folder, f"made of another version of {variant.source.name}")
    return None


@cache
def _index(folder: Path) -> dict[tuple[str, str, str], list[BundledBuild]]:
    """Return the builds by compiler, kernel and architecture."""
    found: dict[tuple[str, str, str], list[BundledBuild]] = {}
    try:
        for one in read_bundle(folder):
            found.setdefault((one.compiler, one.kernel, one.architecture), []).append(one)
    except BundleError as error:
        warnings.warn(f"{error}; passed over", RuntimeWarning, stacklevel=9)
    return found


def _loaded(folder: Path, one: BundledBuild, variant: Variant) -> Build | None:
    if one.processor != _processor(CompilerName(one.compiler)):
        _warn_once(folder, "made for another processor")
        return None
    try:
        code = _read_private(folder / Path(one.file).name)
    except (OSError, ValueError) as error:  # a name that no file can have
        _warn_once(folder, f"damaged: {one.file!r}: {getattr(error, 'strerror', None) or error}")
        return None
    if hashlib.sha256(code).hexdigest() != one.sha256:
        _warn_once(folder, f"damaged: {one.file} is not what was written")
        return None
    if missing := variant.signatures.keys() - one.entry_points.keys():
        _warn_once(folder, f"damaged: {INDEX} has no entry point {min(missing)}")
        return None
    return Build(
        variant_digest=one.variant_digest,
        compiler=CompilerName(one.compiler),
        compiler_version=one.compiler_version,
        code=code,
        log="",
        figures={name: one.entry_points[name] for name in variant.signatures},
        seconds=one.seconds,
        cached=True,
        signatures=variant.signatures,
    )


@cache
def _warn_once(folder: Path, what: str) -> None:
    warnings.warn(
        f"{folder}: {what}: write it again with 'tunebench bundle'; passed over", RuntimeWarning, stacklevel=10
    )


def _read_private(path: Path) -> bytes:
    """Return the content of a file that nobody but this user or root can have written.

    Raises:
        OSError: it is not there, or others can write it.
    """
    with open_itself(path) as file:
        if not all(is_written_by(one, [0, os.getuid()]) for one in (os.fstat(file.fileno()), path.parent.stat())):
            raise OSError(f"it, or its folder, is another user's or writable by others ('chmod -R go-w {path.parent}')")
        return file.read()


def _processor(compiler: CompilerName) -> str:
    return find_device("cpu").uuid if compiler is CompilerName.CPU else ""
