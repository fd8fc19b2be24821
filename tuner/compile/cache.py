"""The on-disk build cache: complete keys, atomic publication, corrupt entries put aside.

One file a build: a line of JSON (everything but the binary, with the binary's digest) and then the binary.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import platformdirs

from tunebench.tuner.build import Build, CompilerName, KernelFigures
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.errors import CompilerKilledError
from tunebench.tuner.variant import Variant

_FORMAT = 1


def default_cache_folder() -> Path:
    """`$TUNEBENCH_CACHE` where it is set, else the user's cache folder."""
    chosen = os.environ.get("TUNEBENCH_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("tunebench")) / "builds"


class BuildCache:
    """Builds by the digest of all that determines them. Safe to share between threads and processes."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_cache_folder()

    def build(self, compiler: Compiler, variant: Variant) -> Build:
        """The build of a variant, from the cache or compiled now.

        Raises:
            CompileError: the compiler refused the source; refusals are not cached.
            CompilerMissingError: the compiler is not on this machine.
        """
        path = self._path(compiler, variant)
        if (found := self._read(path)) is not None:
            return found
        try:
            build = compiler.compile(variant)
        except CompilerKilledError:
            build = compiler.compile(variant)  # the second time it is taken for the variant's doing
        try:
            self._publish(path, build)
        except OSError as error:
            # The build is good; what a full or read-only disk costs is that it is compiled again the next time.
            warnings.warn(f"builds are not kept in {self._folder}: {error.strerror}", RuntimeWarning, stacklevel=2)
        return build

    def _path(self, compiler: Compiler, variant: Variant) -> Path:
        parts = [_FORMAT, compiler.name, compiler.version(), compiler.flags(variant), variant.digest]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return self._folder / key[:2] / f"{key}.build"

    @staticmethod
    def _read(path: Path) -> Build | None:
        try:
            content = path.read_bytes()
        except OSError:
            return None  # not there, or not to be read: it is compiled
        head, _, code = content.partition(b"\n")
        try:
            fields = json.loads(head)
            if fields.pop("code_sha256") != hashlib.sha256(code).hexdigest():
                raise ValueError("the binary is not the one that was stored")
            fields["figures"] = {name: KernelFigures(**figures) for name, figures in fields["figures"].items()}
            fields["compiler"] = CompilerName(fields["compiler"])
            return replace(Build(code=code, **fields), cached=True)
        except (ValueError, KeyError, TypeError, AttributeError):
            # Put aside rather than deleted: a torn file is evidence of a disk or a program that misbehaves.
            path.replace(path.with_suffix(".corrupt"))
            return None

    @staticmethod
    def _publish(path: Path, build: Build) -> None:
        fields = asdict(build)
        code = fields.pop("code")
        del fields["cached"]
        fields["code_sha256"] = hashlib.sha256(code).hexdigest()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            partial = Path(file.name)
            try:
                file.write(json.dumps(fields).encode() + b"\n" + code)
                file.flush()
            except OSError:
                partial.unlink()
                raise
        partial.replace(path)
