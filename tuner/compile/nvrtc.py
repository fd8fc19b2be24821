"""The `nvrtc` compiler: CUDA C++ to a cubin in this process, for any architecture, with or without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from tunebench.tuner.build import Argument, Build, CompilerName, Dim3, KernelFigures, LoadedModule
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.errors import CompileError, CompilerMissingError, LaunchError
from tunebench.tuner.scratch import scratch
from tunebench.tuner.variant import Variant

_FLAGS = ("--std=c++17", "--ptxas-options=-v")

# Hopper and later: the `a` targets have the instructions of that very chip (wgmma, setmaxnreg); a cubin runs on
# nothing else anyway.
_FIRST_ARCHITECTURE_SPECIFIC = 90

_SHARED_WITHOUT_ASKING = 48 * 1024
"""Dynamic shared memory, in bytes, that a block gets without the function's limit being raised."""


class NvrtcCompiler(Compiler):
    """NVRTC through cuda-core. Compilation releases the GIL, so threads compile side by side."""

    name = CompilerName.NVRTC

    def version(self) -> str:
        """NVRTC's version, such as `NVRTC 13.0`.

        Raises:
            CompilerMissingError: cuda-bindings or the NVRTC library is not installed.
        """
        try:
            from cuda.bindings import nvrtc

            status, major, minor = nvrtc.nvrtcVersion()
        except (ImportError, RuntimeError) as error:
            raise CompilerMissingError(
                "compiler 'nvrtc' is not here: pip install 'tunebench[nvrtc]', or a CUDA build of torch"
            ) from error
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilerMissingError(f"compiler 'nvrtc' does not answer: {status}; reinstall nvidia-cuda-nvrtc")
        return f"NVRTC {major}.{minor}"

    def flags(self, variant: Variant) -> tuple[str, ...]:
        """NVRTC's own spelling of what `compile` asks for."""
        return (*_FLAGS, f"--gpu-architecture={_target(variant.architecture)}")

    def compile(self, variant: Variant) -> Build:
        """Compile to a cubin.

        Raises:
            CompileError: the source was refused; carries the log.
            CompilerMissingError: NVRTC is not on this machine.
        """
        version = self.version()
        from cuda.core import Program, ProgramOptions

        log = io.StringIO()
        started = time.perf_counter()
        with _header_folder(variant) as folder:
            options = ProgramOptions(
                name=f"{variant.source.name}.cu",
                arch=_target(variant.architecture),
                std="c++17",
                ptxas_options=["-v"],
                include_path=[folder] if folder else None,
            )
            try:
                code = Program(variant.text, "c++", options).compile("cubin", logs=log).code
            # cuda-core has no public class for NVRTC's refusals; whatever it raises here is about this source.
            except Exception as error:
                log_text = str(error).replace("\0", "").strip()
                raise CompileError(f"NVRTC refused {variant.source.name}.cu", log_text) from error
        return Build(
            variant_digest=variant.digest,
            compiler=self.name,
            compiler_version=version,
            code=bytes(code),
            log=log.getvalue(),
            # A cubin from NVRTC's own cache comes without ptxas and so without a word on its entry points.
            figures=dict.fromkeys(variant.source.entry_points, KernelFigures()) | parse_ptxas_log(log.getvalue()),
            seconds=time.perf_counter() - started,
        )

    def load(self, build: Build, device_index: int | None = None) -> LoadedModule:
        """Load a cubin on a CUDA device.

        Raises:
            LaunchError: the driver refused the binary.
        """
        return CudaModule(build, torch.cuda.current_device() if device_index is None else device_index)


class CudaModule(LoadedModule):
    """A cubin on one CUDA device."""

    def __init__(self, build: Build, device_index: int) -> None:
        from cuda.core import Device, ObjectCode, launch

        self._launch = launch
        self._index = device_index
        self._device = Device(device_index)
        self._kernels: dict[str, Any] = {}
        self._streams: dict[int, Any] = {}
        self._shared_limits: dict[str, int] = {}
        with torch.cuda.device(device_index):
            torch.cuda.current_stream().synchronize()  # makes torch create the context that the binary is loaded in
            self._device.set_current()
            self._object = ObjectCode.from_cubin(build.code)
            for entry_point in build.figures:
                self._kernels[entry_point] = self._get(entry_point)

    def _get(self, entry_point: str) -> Any:
        try:
            return self._object.get_kernel(entry_point)
        # cuda-core's CUDAError is not public; a binary without its entry point, or for another chip, ends here.
        except Exception as error:
            raise LaunchError(f"the driver refused entry point '{entry_point}': {error}") from error

    def launch(self, entry_point: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], shared: int = 0) -> None:
        """Launch on torch's current stream of the device.

        Raises:
            LaunchError: the driver refused the launch; errors while running show at the next synchronisation.
        """
        # Every microsecond here is one that a forward of a small problem waits: nothing is made anew that can be kept.
        if torch._C._cuda_getDevice() != self._index:
            with torch.cuda.device(self._index):
                return self.launch(entry_point, grid, block, arguments, shared)
        try:
            if shared > self._shared_limits.get(entry_point, _SHARED_WITHOUT_ASKING):
                self._raise_shared_limit(entry_point, shared)
            values = [_FORM[type(argument)](argument) for argument in arguments]
            self._launch(self._stream(), _launch_config(grid, block, shared), self._kernels[entry_point], *values)
        except KeyError as error:
            legal = "a tensor or one of ctypes' c_float, c_double, c_longlong, c_int, c_void_p"
            raise LaunchError(
                f"launch of '{entry_point}': {error.args[0]} is no kernel argument: give {legal}"
            ) from error
        except Exception as error:
            raise LaunchError(f"launch of '{entry_point}' with grid {grid}, block {block}: {error}") from error

    def _raise_shared_limit(self, entry_point: str, shared: int) -> None:
        from cuda.bindings import driver

        (status,) = driver.cuKernelSetAttribute(
            driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            shared,
            driver.CUkernel(int(self._kernels[entry_point].handle)),
            driver.CUdevice(self._index),
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(f"'{entry_point}' needs {shared} bytes of shared memory a block: {status.name}")
        self._shared_limits[entry_point] = shared

    def _stream(self) -> Any:
        handle = torch._C._cuda_getCurrentRawStream(self._index)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._device.create_stream(_ForeignStream(handle)) if handle else self._device.default_stream
            self._streams[handle] = stream
        return stream

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Blocks one multiprocessor holds at once, by the driver's occupancy calculation."""
        with torch.cuda.device(self._index):
            occupancy = self._kernels[entry_point].occupancy
            return max(1, int(occupancy.max_active_blocks_per_multiprocessor(threads, shared)))


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def _pointer(pointer: ctypes.c_void_p) -> int:
    return pointer.value or 0


def _as_it_is(scalar: Any) -> Any:
    return scalar


_FORM: dict[type, Callable[[Any], Any]] = {
    torch.Tensor: _address,
    torch.nn.Parameter: _address,
    ctypes.c_void_p: _pointer,
    **dict.fromkeys((ctypes.c_float, ctypes.c_double, ctypes.c_longlong, ctypes.c_int), _as_it_is),
}
"""Arguments in the form that cuda-core takes, by their type: pointers are plain integers."""


@lru_cache(maxsize=4096)
def _launch_config(grid: Dim3, block: Dim3, shared: int) -> Any:
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=grid, block=block, shmem_size=shared)


class _ForeignStream:
    """A stream handle that torch owns, in the form that cuda-core takes."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


def parse_ptxas_log(log: str) -> dict[str, KernelFigures]:
    """The figures that `ptxas -v` prints, by entry point."""
    figures: dict[str, KernelFigures] = {}
    for part in re.split(r"Compiling entry function '", log)[1:]:
        name = part.split("'", 1)[0]
        figures[name] = KernelFigures(
            registers=_number(r"Used (\d+) registers", part),
            spill_stores=_number(r"(\d+) bytes spill stores", part),
            spill_loads=_number(r"(\d+) bytes spill loads", part),
            stack=_number(r"(\d+) bytes stack frame", part),
            shared=_number(r"(\d+) bytes smem", part) or 0,
        )
    return figures


def _number(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    return int(match.group(1)) if match else None


def _target(architecture: str) -> str:
    number = int(architecture.removeprefix("sm_"))
    return f"{architecture}a" if number >= _FIRST_ARCHITECTURE_SPECIFIC else architecture


@contextlib.contextmanager
def _header_folder(variant: Variant) -> Iterator[str | None]:
    """A folder that holds the variant's headers, for as long as the compilation lasts."""
    if not variant.source.headers:
        yield None
        return
    with scratch() as folder:
        for name, text in variant.source.headers.items():
            (folder / name).write_text(text, encoding="utf-8")
        yield str(folder)
