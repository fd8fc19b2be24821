"""The on-disk build cache: complete keys, atomic publication, corrupt entries put aside.

One file a build: a line of JSON (everything but the binary) and then the binary. Its name has the key and the digest of
all its content. What is in the cache is run, so that only files are read that nobody but their user can have written.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from dataclasses import asdict, replace
from pathlib import Path

from tunebench.tuner.build import Build, CompilerName, KernelFigures
from tunebench.tuner.cache_folder import default_cache_folder
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.errors import CompilerKilledError
from tunebench.tuner.files import is_written_by, made_private, open_itself, remove_abandoned
from tunebench.tuner.variant import Variant

_FORMAT = 2


class BuildCache:
    """A cache of builds by the digest of all that determines them. Threads and processes of one user may share it."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_cache_folder()

    def find(self, compiler: Compiler, variant: Variant) -> Build | None:
        """Return the build of a variant, where it is in the cache.

        Raises:
            CompilerMissingError: the compiler is not on this machine.
        """
        compiler = compiler.of(variant)
        key = _key(compiler, variant)
        return None if self._why_not_kept(key) else _read(self._folder / key[:2], key, compiler, variant)

    def build(self, compiler: Compiler, variant: Variant) -> Build:
        """Return the build of a variant, from the cache or compiled now.

        Raises:
            CompileError: the compiler refused the source; refusals are not cached.
            CompilerMissingError: the compiler is not on this machine.
        """
        compiler = compiler.of(variant)
        if (found := self.find(compiler, variant)) is not None:
            return found
        try:
            build = compiler.compile(variant)
        except CompilerKilledError:
            build = compiler.compile(variant)  # the second time it is taken for the variant's doing
        key = _key(compiler, variant)
        why_not = self._why_not_kept(key)
        try:
            if not why_not:
                _publish(self._folder / key[:2], key, build)
        except OSError as error:
            why_not = str(error.strerror)
        if why_not:
            # The build is good; what a full or read-only disk costs is that it is compiled again the next time.
            warnings.warn(f"builds are not kept in {self._folder}: {why_not}", RuntimeWarning, stacklevel=2)
        return build

    def _why_not_kept(self, key: str) -> str:
        """Make the folders; return why no build can be kept, or be read without fear; empty where it can."""
        try:
            if made_private(self._folder) and made_private(self._folder / key[:2]):
                return ""
        except OSError as error:
            return str(error.strerror)
        return f"it, or a folder in it, is another user's or writable by others ('chmod -R go-w {self._folder}')"


def _key(compiler: Compiler, variant: Variant) -> str:
    parts = [_FORMAT, compiler.name, compiler.version(), compiler.flags(variant), variant.digest]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read(folder: Path, key: str, compiler: Compiler, variant: Variant) -> Build | None:
    for path in sorted(folder.glob(f"{key}.*.build")):
        try:
            with open_itself(path) as file:
                if not is_written_by(os.fstat(file.fileno()), [os.getuid()]):
                    continue
                content = file.read()
        except OSError:
            continue  # not there any more, or not to be read: it is compiled
        try:
            return _decoded(content, path.name.split(".")[1], compiler, variant)
        except (ValueError, KeyError, TypeError, AttributeError):
            # Put aside rather than deleted: a torn file is evidence of a disk or a program that misbehaves.
            path.replace(path.with_suffix(".corrupt"))
    return None


def _decoded(content: bytes, digest: str, compiler: Compiler, variant: Variant) -> Build:
    """Return the build that an entry holds.

    Raises:
        ValueError: it is not what was stored, or the build of something else.
    """
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError("the content is not what was stored")
    head, _, code = content.partition(b"\n")
    fields = json.loads(head)
    fields["figures"] = {name: KernelFigures(**figures) for name, figures in fields["figures"].items()}
    fields["compiler"] = CompilerName(fields["compiler"])
    build = Build(code=code, signatures=variant.signatures, **fields)
    if (build.variant_digest, build.compiler) != (variant.digest, compiler.name):
        raise ValueError("the build is another variant's")
    return replace(build, cached=True)


def _publish(folder: Path, key: str, build: Build) -> None:
    fields = asdict(build)
    code = fields.pop("code")
    del fields["cached"], fields["signatures"]
    content = json.dumps(fields).encode() + b"\n" + code
    remove_abandoned(folder)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=f".{os.getpid()}.partial", delete=False) as file:  # mode 0600
        partial = Path(file.name)
        try:
            file.write(content)
            file.flush()
        except BaseException:
            partial.unlink()
            raise
    partial.replace(folder / f"{key}.{hashlib.sha256(content).hexdigest()}.build")
