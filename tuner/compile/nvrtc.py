"""The `nvrtc` compiler: CUDA C++ to a cubin in this process, for any architecture, with or without a GPU."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from tunebench.tuner.build import Argument, Build, CompilerName, Extent, KernelFigures, LoadedModule, Threads
from tunebench.tuner.compile import nvrtc_program
from tunebench.tuner.compile.arguments import Arguments, dim3, no_entry_point
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.entry_point import DriverCall, EntryPoint
from tunebench.tuner.compile.nvrtc_program import RefusedError, compile_program
from tunebench.tuner.compile.processes import run_main
from tunebench.tuner.errors import CompileError, CompilerMissingError, LaunchError
from tunebench.tuner.variant import Variant

# Lambdas and plain functions of a source that only a device runs are the device's: NVRTC 13.0 takes a generic lambda
# for the host's otherwise, where 13.5 does not.
_FLAGS = ("--std=c++17", "--ptxas-options=-v", "--device-as-default-execution-space")

_FLAGS_SINCE: Mapping[str, tuple[int, int]] = {
    "--no-cache": (12, 9),  # what comes from NVRTC's own cache, which it has since then, is without ptxas's figures
}
"""Options that an NVRTC older than this version refuses, and can do without."""

# Hopper and later: the `a` targets have the instructions of that very chip (wgmma, setmaxnreg); a cubin runs on
# nothing else anyway.
_FIRST_ARCHITECTURE_SPECIFIC = 90

_NO_CONTEXT = 201
"""The driver's CUDA_ERROR_INVALID_CONTEXT."""


class NvrtcCompiler(Compiler):
    """NVRTC in this process. Compilation releases the GIL, so threads compile side by side."""

    name = CompilerName.NVRTC

    def version(self) -> str:
        """Return NVRTC's version, such as `NVRTC 13.0`.

        Raises:
            CompilerMissingError: cuda-bindings or the NVRTC library is not installed.
        """
        return "NVRTC {}.{}".format(*_version())

    def flags(self, variant: Variant) -> tuple[str, ...]:
        """Name what `compile` asks for, in options that this NVRTC has.

        Raises:
            CompilerMissingError: cuda-bindings or the NVRTC library is not installed.
        """
        left_out = self.left_out()
        known = (option for option in _FLAGS_SINCE if option not in left_out)
        return (*_FLAGS, *known, f"--gpu-architecture={_target(variant.architecture)}")

    def left_out(self) -> Sequence[str]:
        """List the options that this NVRTC is too old for.

        Raises:
            CompilerMissingError: cuda-bindings or the NVRTC library is not installed.
        """
        version = _version()
        return [option for option, since in _FLAGS_SINCE.items() if version < since]

    def _compiled(self, variant: Variant) -> tuple[bytes, str, dict[str, KernelFigures]]:
        """Compile to a cubin."""
        name = variant.cuda.file
        try:
            code, log = self._program(variant.text, name, variant.cuda.headers, self.flags(variant))
        except RefusedError as refusal:
            raise CompileError(f"NVRTC refused {name}: {_first_error(str(refusal))}", str(refusal)) from refusal
        return code, log, parse_ptxas_log(log)

    def _program(self, text: str, name: str, headers: Mapping[str, str], options: Sequence[str]) -> tuple[bytes, str]:
        return compile_program(text, name, headers, options)

    def apart(self) -> Compiler:
        """Return NVRTC in processes of their own: a thread inside NVRTC crashes the process that ends meanwhile."""
        return NvrtcApart()

    def load(self, build: Build, device_index: int | None = None) -> LoadedModule:
        """Load a cubin on a CUDA device.

        Raises:
            LaunchError: the driver refused the binary.
        """
        return CudaModule(build, torch.cuda.current_device() if device_index is None else device_index)


def _version() -> tuple[int, int]:
    """Ask NVRTC for its version."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        is_older = str(torch.version.cuda).startswith("12.")
        needed = "'tunebench[nvrtc12]'" if is_older else "'tunebench[nvrtc]', or a CUDA build of torch"
        raise CompilerMissingError(f"compiler 'nvrtc' is not here: pip install {needed}") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompilerMissingError(f"compiler 'nvrtc' does not answer: {status}; reinstall nvidia-cuda-nvrtc")
    return major, minor


def _first_error(log: str) -> str:
    lines = log.strip().splitlines() or ["it says nothing"]
    return next((line.strip() for line in lines if "error" in line), lines[0])


class NvrtcApart(NvrtcCompiler):
    """NVRTC in processes without torch that can be killed: at their deadline, or when this one ends."""

    is_apart = True

    def _program(self, text: str, name: str, headers: Mapping[str, str], options: Sequence[str]) -> tuple[bytes, str]:
        request = {"text": text, "name": name, "headers": dict(headers), "options": list(options)}
        code, log = run_main(nvrtc_program, request, self.deadline_seconds, "NVRTC", name)
        if code is None:
            raise RefusedError(log)
        return code, log


class CudaModule(LoadedModule):
    """A cubin on one CUDA device."""

    def __init__(self, build: Build, device_index: int) -> None:
        from cuda.core import Device, ObjectCode

        self._index = device_index
        self._device = Device(device_index)
        self._kernels: dict[str, Any] = {}
        self._entry_points: dict[str, EntryPoint] = {}
        where = torch.device("cuda", device_index)
        with torch.cuda.device(device_index):
            torch.cuda.current_stream().synchronize()  # makes torch create the context that the binary is loaded in
            self._device.set_current()
            self._object = ObjectCode.from_cubin(build.code)
            for name in build.figures:
                self._kernels[name] = self._get(name)
                function, arguments = _function_of(self._kernels[name]), Arguments(build.signatures[name], where)
                self._entry_points[name] = EntryPoint(function, arguments, _driver_call())

    def _get(self, entry_point: str) -> Any:
        try:
            return self._object.get_kernel(entry_point)
        # cuda-core's CUDAError is not public; a binary without its entry point, or for another chip, ends here.
        except Exception as error:
            raise LaunchError(f"the driver refused entry point '{entry_point}': {error}") from error

    def launch(
        self,
        entry_point: str,
        blocks: Extent,
        threads: Threads,
        arguments: Sequence[Argument],
        shared: int = 0,
        *,
        early: bool = False,
    ) -> None:
        """Launch on torch's current stream of the device.

        Raises:
            LaunchError: the arguments are not what the entry point takes, or the driver refused the launch; errors
                while running show at the next synchronisation.
        """
        # Every microsecond here is one that a forward of a small problem waits: nothing is made anew that can be kept.
        if torch._C._cuda_getDevice() != self._index:
            with torch.cuda.device(self._index):
                self.launch(entry_point, blocks, threads, arguments, shared, early=early)
            return
        try:
            found = self._entry_points[entry_point]
        except KeyError:
            raise no_entry_point(entry_point, self._entry_points) from None
        if shared > found.shared_limit:
            self._raise_shared_limit(entry_point, shared)
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        status = found.launch(blocks, threads, arguments, shared, stream, early=early)
        if status == _NO_CONTEXT:  # of a thread that has asked the driver for nothing yet
            self._device.set_current()
            status = found.launch(blocks, threads, arguments, shared, stream, early=early)
        if status:
            told = f"launch of '{entry_point}' with grid {dim3(blocks)}, block {dim3(threads)}"
            raise LaunchError(f"{told}: {_status_text(status)}")

    def launch_early(
        self, entry_point: str, blocks: Extent, threads: Threads, arguments: Sequence[Argument], shared: int = 0
    ) -> None:
        """Launch as `launch` does, by programmatic dependent launch."""
        self.launch(entry_point, blocks, threads, arguments, shared, early=True)

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
        self._entry_points[entry_point].shared_limit = shared

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Return how many blocks one multiprocessor holds at once, by the driver's occupancy calculation."""
        with torch.cuda.device(self._index):
            occupancy = self._kernels[entry_point].occupancy
            return max(1, int(occupancy.max_active_blocks_per_multiprocessor(threads, shared)))


def _function_of(kernel: Any) -> int:
    """Return the driver's function of a cuda-core kernel in the current context."""
    from cuda.bindings import driver

    status, function = driver.cuKernelGetFunction(driver.CUkernel(int(kernel.handle)))
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"the driver has no function for a kernel: {status.name}")
    return int(function)


def _status_text(status: int) -> str:
    from cuda.bindings import driver

    result = driver.CUresult(status)
    _, text = driver.cuGetErrorString(result)
    return f"{result.name}: {text.decode()}"


@cache
def _driver_call() -> DriverCall:
    """Return `cuLaunchKernelEx` of the driver."""
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = (ctypes.c_void_p,) * 4
    function.restype = ctypes.c_int
    return function


def parse_ptxas_log(log: str) -> dict[str, KernelFigures]:
    """Return the figures that `ptxas -v` prints, by entry point."""
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
