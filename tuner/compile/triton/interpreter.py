"""Triton functions on the CPU, run by Triton's own interpreter: slow, and the same source as on a GPU."""

from __future__ import annotations

import functools
import linecache
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tunebench.tuner.build import Argument, Build, Extent, LoadedModule, Threads, Within
from tunebench.tuner.compile.arguments import Arguments, dim3, geometry_refusal
from tunebench.tuner.compile.triton.binaries import interpreted_parts
from tunebench.tuner.compile.triton.launch import no_function, require_triton_launch
from tunebench.tuner.errors import CompilerMissingError, LaunchError
from tunebench.tuner.signature import Kind, Parameter
from tunebench.tuner.triton_source import type_of
from tunebench.tuner.users_code import described

_DTYPES: Mapping[Kind, type[np.generic]] = {
    Kind.BOOL: np.bool_,
    Kind.INT8: np.int8,
    Kind.INT16: np.int16,
    Kind.INT32: np.int32,
    Kind.INT64: np.int64,
    Kind.UINT8: np.uint8,
    Kind.UINT16: np.uint16,
    Kind.UINT32: np.uint32,
    Kind.UINT64: np.uint64,
    Kind.FLOAT: np.float32,
    Kind.DOUBLE: np.float64,
    Kind.POINTER: np.uint64,
}

_running = threading.Lock()
"""The interpreter has one grid for the process."""


def _begin_in_fork() -> None:
    global _running  # noqa: PLW0603 - a thread of the parent may hold it
    _running = threading.Lock()


os.register_at_fork(after_in_child=_begin_in_fork)


class InterpretedModule(LoadedModule):
    """The functions of a Triton source in this process."""

    def __init__(self, build: Build) -> None:
        try:
            from triton import language
        except ImportError as error:
            raise CompilerMissingError(
                "Triton's interpreter is not here, which runs Triton sources on a CPU: pip install 'tunebench[triton]'"
            ) from error
        self._file = f"<triton {build.variant_digest[:16]}>"
        text, self._constants = interpreted_parts(build.code)
        self._signatures = build.signatures
        self._arguments = {name: Arguments(one, torch.device("cpu")) for name, one in build.signatures.items()}
        # Triton reads a function's text, which is in no file.
        linecache.cache[self._file] = (len(text), None, text.splitlines(keepends=True), self._file)
        # The interpreter gives the modules it finds here its own functions, and takes them away behind a launch.
        self._functions: dict[str, Any] = {"__name__": self._file, "_language": language, "_core": language.core}
        with _interpreting():
            try:
                exec(compile(text, self._file, "exec"), self._functions)
            except Exception as error:
                raise LaunchError(f"{_place(error, self._file)}{type(error).__name__}: {error}") from error

    def launch(
        self, entry_point: str, blocks: Extent, threads: Threads, arguments: Sequence[Argument], shared: int = 0
    ) -> None:
        """Run the programs of a grid, one after the other.

        Raises:
            LaunchError: CUDA would refuse the launch, the arguments are not what the function takes, or it raised.
        """
        require_triton_launch(entry_point, self._signatures, threads, shared)
        grid = dim3(blocks)
        if refusal := geometry_refusal(grid, (1, 1, 1), 0):
            raise LaunchError(f"launch of '{entry_point}' with grid {grid}: {refusal}")
        given = self._given(entry_point, arguments)
        with _running, _interpreting():
            try:
                self._functions[entry_point][grid](**given, **self._constants[entry_point])
            except Exception as error:
                cause = _innermost(error)
                what = f"{_place(error, self._file)}{described(cause)}"
                raise LaunchError(f"launch of '{entry_point}' with grid {grid}: {what}") from error

    def _given(self, entry_point: str, arguments: Sequence[Argument]) -> dict[str, Any]:
        """Return the arguments by name, as Triton's values of exactly their parameters' types."""
        accepted = self._arguments[entry_point]
        form = accepted.form(arguments)
        accepted.check_devices(arguments)
        values: dict[int, int | float] = dict(zip(form.numbers, accepted.numbers(arguments), strict=True))
        for at in (*form.tensors, *form.places, *form.nulls):
            values[at] = _address(arguments[at])
        parameters = self._signatures[entry_point].parameters
        return {one.name: _value(one, values[at]) for at, one in enumerate(parameters)}

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:  # noqa: ARG002
        """Return 1: programs run one after the other."""
        if entry_point not in self._signatures:
            raise no_function(entry_point, self._signatures)
        return 1


def _address(argument: Argument) -> int:
    if isinstance(argument, Within):
        return argument.address
    return argument.data_ptr() if isinstance(argument, torch.Tensor) else 0


def _value(parameter: Parameter, value: float) -> Any:
    from triton import language
    from triton.runtime.interpreter import TensorHandle

    assert parameter.kind is not None
    type_ = language.str_to_ty(type_of(parameter), None)
    return language.tensor(TensorHandle(np.array([value], dtype=_DTYPES[parameter.kind]), type_), type_)


@contextmanager
def _interpreting() -> Iterator[None]:
    """Let Triton's functions run as Python, those of its own library as well, which are compiled ones elsewhere."""
    from triton import knobs
    from triton.runtime.interpreter import interpreter_builder
    from triton.runtime.jit import JITFunction

    before = JITFunction.__call__
    with knobs.runtime.scope():
        knobs.runtime.interpret = True
        JITFunction.__call__ = lambda function, *given, **named: _interpreted(function.fn)(*given, **named)
        interpreter_builder.cast_impl = functools.partial(
            _cast, type(interpreter_builder).cast_impl, interpreter_builder
        )
        try:
            yield
        finally:
            JITFunction.__call__ = before
            del interpreter_builder.cast_impl


def _cast(cast: Callable[[Any, Any, Any], Any], builder: Any, source: Any, type_: Any) -> Any:
    """Cast as GPUs do: to bfloat16 they round to nearest (even), where the interpreter cuts off."""
    from triton.runtime.interpreter import TensorHandle

    if (source.dtype.scalar.name, type_.scalar.name) != ("fp32", "bf16"):
        return cast(builder, source, type_)
    bits = np.ascontiguousarray(source.data).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 | 0x40
    halves = np.where(np.isnan(source.data), quiet, rounded).astype(np.uint16)
    return TensorHandle(halves, type_.scalar)


@functools.cache
def _interpreted(function: Any) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(function)


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _place(error: BaseException, file: str) -> str:
    """Return the line of the source that an exception came from last, and a colon; empty where it came through none."""
    lines: list[int] = []
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, SyntaxError) and found.lineno is not None:
            lines.append(found.lineno)
        frames = traceback.extract_tb(found.__traceback__)
        lines += [frame.lineno or 0 for frame in frames if frame.filename == file]
        found = found.__cause__
    return f"line {lines[-1]}: " if lines else ""
