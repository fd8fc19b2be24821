"""The `triton` compiler: Triton functions to cubins, for any architecture, with or without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib import metadata

from tunebench.tuner.build import Build, CompilerName, KernelFigures, LoadedModule
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.nvrtc import parse_ptxas_log
from tunebench.tuner.compile.processes import run_main
from tunebench.tuner.compile.triton import program
from tunebench.tuner.compile.triton.binaries import Binary, binaries_in, interpreted_content, is_for_gpu
from tunebench.tuner.errors import CompileError, CompilerMissingError
from tunebench.tuner.triton_source import TritonSource
from tunebench.tuner.variant import Variant

_GPU = "sm_"
_FORM = "1"
"""Version of the cached build's layout; part of the cache key."""


class TritonCompiler(Compiler):
    """Triton in processes of its own, with the ptxas that it brings; they import neither torch nor a user's model.

    For a GPU a build has each entry point twice: for arguments whose addresses and integers are divisible by 16, which
    Triton loads as vectors, and for any others. For a CPU it is the source itself, which Triton's interpreter runs.
    """

    name = CompilerName.TRITON
    deadline_seconds = 300.0  # products with deep pipelines take ptxas long

    def version(self) -> str:
        """Return Triton's version, such as `Triton 3.9.0`.

        Raises:
            CompilerMissingError: it is not installed.
        """
        return f"Triton {_version()}"

    def flags(self, variant: Variant) -> tuple[str, ...]:  # noqa: ARG002
        """Return no flags: Triton's options are part of the variant."""
        return (_FORM,)

    def _compiled(self, variant: Variant) -> tuple[bytes, str, dict[str, KernelFigures]]:
        """Compile to cubins; for a CPU there is nothing to compile."""
        source, fixed = variant.source, json.loads(variant.prologue)
        assert isinstance(source, TritonSource)
        if not variant.architecture.startswith(_GPU):
            return interpreted_content(source.text, fixed), "", {name: KernelFigures() for name in source.entry_points}
        architecture = int(variant.architecture.removeprefix(_GPU))
        request = {"text": source.text, "file": source.file, "fixed": fixed, "architecture": architecture}
        code, log = run_main(program, request, self.deadline_seconds, "Triton", source.file)
        if code is None:
            raise CompileError(f"Triton refused {_first_line(log, source.file)}", log)
        return code, log, _figures(log, binaries_in(code))

    def load(self, build: Build, device_index: int | None = None) -> LoadedModule:
        """Load cubins on a CUDA device, or a source into Triton's interpreter.

        Raises:
            LaunchError: the driver refused a binary, or the interpreter the source.
        """
        if is_for_gpu(build.code):
            from tunebench.tuner.compile.triton.on_gpu import TritonModule

            return TritonModule(build, device_index)
        from tunebench.tuner.compile.triton.interpreter import InterpretedModule

        return InterpretedModule(build)


@cache
def _version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        pass
    try:
        import triton  # as torch's own distributions call it otherwise
    except ImportError as error:
        raise CompilerMissingError("compiler 'triton' is not here: pip install 'tunebench[triton]'") from error
    return str(triton.__version__)


def _first_line(log: str, file: str) -> str:
    """Return the line of a refusal that has the reason; it begins with the file's name."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith(file)), f"{file}: {lines[-1] if lines else 'see its log'}")


def _figures(log: str, binaries: list[Binary]) -> dict[str, KernelFigures]:
    """Return ptxas's figures of each entry point; shared memory is what Triton requests at a launch."""
    said = parse_ptxas_log(log)
    shared = {one.entry_point: one.shared for one in binaries}
    return {name: replace(said.get(name, KernelFigures()), shared=bytes_) for name, bytes_ in shared.items()}
