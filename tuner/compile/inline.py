"""The `inline` compiler: torch's `load_inline`, the form that the ecosystem runs; slow, and only where CUDA torch is.

The translation unit is the same as NVRTC's, with one exported launcher an entry point. `no_implicit_headers` keeps
torch's headers out of it, which would take a minute a variant.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Sequence

import torch

from tunebench.tuner.build import Argument, Build, CompilerName, Extent, KernelFigures, LoadedModule, Threads
from tunebench.tuner.compile.arguments import Arguments, dim3, no_entry_point
from tunebench.tuner.compile.base import KILLED, Compiler
from tunebench.tuner.errors import CompileError, CompilerKilledError, CompilerMissingError, LaunchError
from tunebench.tuner.scratch import scratch, scratch_folder
from tunebench.tuner.variant import Variant

_LAUNCHERS = """
extern "C" int tunebench_launch_{name}(const unsigned* grid, const unsigned* block, size_t shared, void* stream,
                                       void** arguments) {{
    return (int)cudaLaunchKernel((const void*){name}, dim3(grid[0], grid[1], grid[2]),
                                 dim3(block[0], block[1], block[2]), arguments, shared, (cudaStream_t)stream);
}}
extern "C" int tunebench_resident_{name}(int* blocks, int threads, size_t shared) {{
    return (int)cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, {name}, threads, shared);
}}
"""


class InlineCompiler(Compiler):
    """nvcc and ninja through `torch.utils.cpp_extension.load_inline`."""

    name = CompilerName.INLINE
    deadline_seconds = 900.0  # a minute a variant where torch's headers are in it

    def version(self) -> str:
        """Return torch's and CUDA's versions.

        Raises:
            CompilerMissingError: torch is a CPU build, or nvcc or ninja is missing.
        """
        from torch.utils.cpp_extension import CUDA_HOME, is_ninja_available

        if torch.version.cuda is None:
            raise CompilerMissingError("compiler 'inline' needs a CUDA build of torch; use --compiler nvrtc or cpu")
        if CUDA_HOME is None or shutil.which(f"{CUDA_HOME}/bin/nvcc") is None:
            raise CompilerMissingError("compiler 'inline' needs nvcc: install the CUDA toolkit and set CUDA_HOME")
        if not is_ninja_available():
            raise CompilerMissingError("compiler 'inline' needs ninja: pip install ninja")
        return f"torch {torch.__version__} CUDA {torch.version.cuda}"

    def flags(self, variant: Variant) -> tuple[str, ...]:
        """Return the flags for nvcc in addition to torch's own."""
        number = variant.architecture.removeprefix("sm_")
        suffix = "a" if int(number) >= 90 else ""
        return ("-O3", "-std=c++17", f"-gencode=arch=compute_{number}{suffix},code=sm_{number}{suffix}")

    def _compiled(self, variant: Variant) -> tuple[bytes, str, dict[str, KernelFigures]]:
        """Compile to a shared library; the log of a refusal is ninja's."""
        from torch.utils.cpp_extension import load_inline

        name = f"tunebench_{variant.source.name}_{variant.digest[:16]}"
        launchers = "".join(_LAUNCHERS.format(name=entry_point) for entry_point in variant.source.entry_points)
        with scratch() as folder:
            for header, text in variant.cuda.headers.items():
                (folder / header).write_text(text, encoding="utf-8")
            try:
                load_inline(
                    name=name,
                    cpp_sources=[],
                    cuda_sources=["#include <cuda_runtime.h>\n" + variant.text + launchers],
                    extra_cuda_cflags=list(self.flags(variant)),
                    extra_include_paths=[str(folder)],
                    build_directory=str(folder),
                    is_python_module=False,
                    no_implicit_headers=True,
                )
            except RuntimeError as error:
                if KILLED.search(str(error)):
                    told = f"nvcc was killed while it compiled {variant.cuda.file}: is there enough memory?"
                    raise CompilerKilledError(told, str(error)) from error
                raise CompileError(f"nvcc refused {variant.cuda.file}", str(error)) from error
            code = (folder / f"{name}.so").read_bytes()
        return code, "", {entry_point: KernelFigures() for entry_point in variant.source.entry_points}

    def load(self, build: Build, device_index: int | None = None) -> LoadedModule:
        """Load the library into this process."""
        return _InlineModule(build, torch.cuda.current_device() if device_index is None else device_index)


class _InlineModule(LoadedModule):
    """A shared library whose launchers call the CUDA runtime."""

    def __init__(self, build: Build, device_index: int) -> None:
        self._index = device_index
        device = torch.device("cuda", device_index)
        self._arguments = {name: Arguments(one, device) for name, one in build.signatures.items()}
        with tempfile.NamedTemporaryFile(dir=scratch_folder(), suffix=".so") as file:
            file.write(build.code)
            file.flush()
            try:
                self._library = ctypes.CDLL(file.name)
            except OSError as error:
                raise LaunchError(f"the library does not load: {error}") from error

    def launch(
        self, entry_point: str, blocks: Extent, threads: Threads, arguments: Sequence[Argument], shared: int = 0
    ) -> None:
        """Launch on torch's current stream of the device.

        Raises:
            LaunchError: the runtime refused the launch, or the arguments are not what the entry point takes.
        """
        if entry_point not in self._arguments:
            raise no_entry_point(entry_point, self._arguments)
        grid, block, packer = dim3(blocks), dim3(threads), self._arguments[entry_point]
        memory = ctypes.create_string_buffer(packer.pack(arguments), packer.size)
        places = [ctypes.addressof(memory) + offset for offset in packer.offsets]
        addresses = (ctypes.c_void_p * len(places))(*places)
        extents = ctypes.c_uint * 3
        with torch.cuda.device(self._index):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            launcher = getattr(self._library, f"tunebench_launch_{entry_point}")
            status = launcher(extents(*grid), extents(*block), ctypes.c_size_t(shared), stream, addresses)
        if status:
            raise LaunchError(f"launch of '{entry_point}' with grid {grid}, block {block}: CUDA error {status}")

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Return how many blocks one multiprocessor holds at once, by the runtime's occupancy calculation."""
        blocks = ctypes.c_int(1)
        with torch.cuda.device(self._index):
            function = getattr(self._library, f"tunebench_resident_{entry_point}")
            status = function(ctypes.byref(blocks), threads, ctypes.c_size_t(shared))
        if status:
            raise LaunchError(f"occupancy of '{entry_point}' at {threads} threads: CUDA error {status}")
        return max(1, blocks.value)
