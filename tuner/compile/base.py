"""The interface of every compiler: a variant in, a build out, the same source for all of its language."""

from __future__ import annotations

import abc
import re
import time

from tunebench.tuner.build import Build, CompilerName, KernelFigures, LoadedModule
from tunebench.tuner.variant import Variant

KILLED = re.compile(
    r"(?:Killed|Terminated) signal terminated program|(?:terminated with|died due to) signal (?:9|15)\b|^Killed$",
    re.MULTILINE,
)
"""The message of g++ and nvcc about a killed program of theirs. Their exit code is the same as for a refused source."""


class Compiler(abc.ABC):
    """A compiler of variants, which loads builds. Instances are safe to use from several threads."""

    name: CompilerName
    deadline_seconds: float = 120.0
    """A compilation that takes longer hangs."""

    @abc.abstractmethod
    def version(self) -> str:
        """Return the compiler's version text, part of every cache key.

        Raises:
            CompilerMissingError: it is not on this machine; the message says how to get it.
        """

    @abc.abstractmethod
    def flags(self, variant: Variant) -> tuple[str, ...]:
        """Return every flag that influences the binary, part of the cache key."""

    def compile(self, variant: Variant) -> Build:
        """Compile one variant, without the cache.

        Raises:
            CompileError: the source was refused (carries the log), or the compiler hangs or crashes.
            CompilerKilledError: the compiler was killed from outside.
            CompilerMissingError: the compiler is not on this machine, or no process can be started.
            DiskFullError: there is no room to compile.
        """
        version, started = self.version(), time.perf_counter()
        code, log, figures = self._compiled(variant)
        return Build(
            variant_digest=variant.digest,
            compiler=self.name,
            compiler_version=version,
            code=code,
            log=log,
            figures=figures,
            seconds=time.perf_counter() - started,
            signatures=variant.signatures,
        )

    def _compiled(self, variant: Variant) -> tuple[bytes, str, dict[str, KernelFigures]]:
        """Return the binary, the compiler's log, and the figures of each entry point; see `compile`."""
        raise NotImplementedError

    def of(self, variant: Variant) -> Compiler:  # noqa: ARG002
        """Return the compiler that compiles a variant, where this stands for several."""
        return self

    is_apart = False
    """Whether its builds are processes that end with this one, so that nobody need wait for them."""

    def apart(self) -> Compiler:
        """Return this compiler for builds during which the program goes on, and may end: as a process to kill."""
        return self

    @abc.abstractmethod
    def load(self, build: Build, device_index: int | None = None) -> LoadedModule:
        """Load a build, on the CUDA device of that index where it is for one.

        Raises:
            LaunchError: the device refused the binary.
        """
