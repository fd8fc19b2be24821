"""The `cpu` compiler: the same ordinary `.cu` source, compiled by g++ and run on the CPU.

`cuda_on_cpu.h`, included before the source, supplies what CUDA C++ has built in; a line generated after it exports each
entry point. torch's own OpenMP runtime runs the blocks: a library linked with `-fopenmp` could bring a second one into
the process, whose threads would compete with torch's, so the libraries name none and get the address of its
`GOMP_parallel` with each launch.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import struct
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch

from tunebench.tuner.build import Argument, Build, CompilerName, Extent, KernelFigures, LoadedModule, Threads
from tunebench.tuner.command import run_command
from tunebench.tuner.compile.arguments import MOST_THREADS_PER_BLOCK, Arguments, dim3, geometry_refusal, no_entry_point
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.compile.processes import run_compiler
from tunebench.tuner.disk import full_disk_named
from tunebench.tuner.errors import (
    CompileError,
    CompilerMissingError,
    LaunchError,
)
from tunebench.tuner.scratch import scratch, scratch_folder
from tunebench.tuner.signature import without_comments
from tunebench.tuner.variant import Variant

_HEADER = Path(__file__).parent / "cuda_on_cpu.h"

_FLAGS = (
    "-std=c++17",
    "-O3",
    # IEEE arithmetic, contracted as nvcc does it. CUDA has neither errno nor floating-point exceptions to keep.
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    # CUDA sources read floats through float4 and int pointers.
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fPIC",
    # Without these two, a static variable of a template would be one and the same in all variants that are loaded.
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    # `__shared__` is `thread_local`, and never needs to be constructed.
    "-fno-extern-tls-init",
    # Fibers change stacks behind a shadow stack's back.
    "-fcf-protection=none",
    "-fno-stack-protector",
    "-U_FORTIFY_SOURCE",
    "-Wno-unknown-pragmas",
    "-Wno-attributes",
    "-pipe",
    "-shared",
    "-nodefaultlibs",
    "-Wl,-z,defs",
    "-Wl,--strip-all",
)
_LIBRARIES = ("-lm", "-lc", "-lgcc")

_COOPERATION = re.compile(r"\b(?:__sync(?:threads|warp)|__shfl|__ballot|__any_sync|__all_sync|__activemask)")
# A thread that waits for others runs on a stack of 64 KiB; a larger frame is an error of the compilation, not a crash.
_COOPERATION_FLAGS = ("-DTUNEBENCH_COOPERATES", "-Werror=frame-larger-than=49152")


# g++ 12 loses stores of packed bfloat16 where it vectorises straight code inside a loop that it vectorises too.
_BFLOAT_FLAGS = ("-fno-tree-slp-vectorize",)


class CpuCompiler(Compiler):
    """g++ for the processor it runs on. Compilation is a process of its own, so threads compile side by side."""

    name = CompilerName.CPU

    def version(self) -> str:
        """Return g++'s version, with digests of what this processor can do and of the headers that stand for CUDA.

        Raises:
            CompilerMissingError: there is no g++.
        """
        return _version(_gxx())

    def flags(self, variant: Variant) -> tuple[str, ...]:
        """Return g++'s flags; which instructions `native` means is part of the version."""
        cooperation = _COOPERATION_FLAGS if _cooperates(variant) else ()
        bfloat = _BFLOAT_FLAGS if "bfloat_t" in variant.prologue else ()
        return (*_FLAGS, _native_flag(), *bfloat, *cooperation, *_LIBRARIES)

    def _compiled(self, variant: Variant) -> tuple[bytes, str, dict[str, KernelFigures]]:
        """Compile to a shared library."""
        flags = self.flags(variant)
        with scratch() as folder:
            for header, text in variant.cuda.headers.items():
                (folder / header).write_text(host_source(text), encoding="utf-8")
            (folder / "variant.cu").write_text(translation_unit(variant), encoding="utf-8")
            options = flags[: -len(_LIBRARIES)]
            command = [_gxx(), *options, "-include", str(_HEADER), "-I.", "-x", "c++", "variant.cu", *_LIBRARIES]
            command += ["-o", "variant.so"]
            compiled, log = run_compiler(command, folder, self.deadline_seconds, "g++", variant.cuda.file)
            if not compiled:
                raise CompileError(f"g++ refused {variant.cuda.file}: {_first_error(log)}", log)
            code = (folder / "variant.so").read_bytes()
        return code, log, {entry_point: KernelFigures() for entry_point in variant.source.entry_points}

    def load(self, build: Build, device_index: int | None = None) -> LoadedModule:  # noqa: ARG002
        """Load a shared library into this process.

        Raises:
            LaunchError: the loader refused the binary.
        """
        return CpuModule(build)


class CpuModule(LoadedModule):
    """A shared library in this process; it is unloaded with the object."""

    def __init__(self, build: Build) -> None:
        # The loader takes a name or an inode that it knows for the same library, so each load has a new file, and the
        # file goes only after the library is mapped.
        file, path = tempfile.mkstemp(dir=scratch_folder(), suffix=".so")
        try:
            with full_disk_named(Path(path).parent), os.fdopen(file, "wb") as opened:
                opened.write(build.code)
            library = ctypes.CDLL(path)
        except OSError as error:
            raise LaunchError(f"the shared library cannot be loaded: {error}") from error
        finally:
            Path(path).unlink()
        # Not at exit: threads of the OpenMP runtime outlive Python's own clean-up.
        weakref.finalize(self, _ctypes.dlclose, library._handle).atexit = False
        self._functions = {}
        self._arguments = {name: Arguments(one, torch.device("cpu")) for name, one in build.signatures.items()}
        for entry_point in build.figures:
            try:
                function = library[f"tunebench_launch_{entry_point}"]
            except AttributeError as error:
                raise LaunchError(f"the shared library has no entry point '{entry_point}'") from error
            function.argtypes = [ctypes.c_char_p]
            function.restype = ctypes.c_char_p
            self._functions[entry_point] = function

    def launch(
        self, entry_point: str, blocks: Extent, threads: Threads, arguments: Sequence[Argument], shared: int = 0
    ) -> None:
        """Run a kernel to its end, on as many threads as torch uses; other Python threads run meanwhile.

        Raises:
            LaunchError: CUDA would refuse the launch, the arguments are not what the kernel takes, or it failed: an
                assertion, `__trap`, or threads that wait for each other for ever.
        """
        if entry_point not in self._functions:
            raise no_entry_point(entry_point, self._functions)
        grid, block = dim3(blocks), dim3(threads)
        if refusal := geometry_refusal(grid, block, shared):
            raise LaunchError(f"launch of '{entry_point}' with grid {grid}, block {block}: {refusal}")
        packer = self._arguments[entry_point]
        memory = ctypes.create_string_buffer(packer.pack(arguments), packer.size)
        words = [*grid, *block, shared, _parallel_function(), torch.get_num_threads(), _STACK_POOL_ADDRESS]
        words.append(len(arguments))
        for offset, bytes_ in zip(packer.offsets, packer.sizes, strict=True):
            words += (ctypes.addressof(memory) + offset, bytes_)
        failure = self._functions[entry_point](struct.pack(f"={len(words)}Q", *words))
        if failure is not None:
            text = failure.decode(errors="replace")
            raise LaunchError(f"launch of '{entry_point}' with grid {grid}, block {block}: {text}")

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:  # noqa: ARG002
        """Return 1: a core runs a block to its end before it begins the next."""
        return 1


# `tunebench::StackPool`, zeros at first: one for the process, so that hundreds of variants share the stacks of a few
# threads.
_stack_pool = (ctypes.c_uint64 * 2)()
_STACK_POOL_ADDRESS = ctypes.addressof(_stack_pool)


def _gxx() -> str:
    path = shutil.which("g++")
    if path is None:
        raise CompilerMissingError("no C++ compiler 'g++' found: install one (Debian/Ubuntu: apt-get install g++)")
    return path


def _native_flag() -> str:
    return "-march=native" if platform.machine() in {"x86_64", "AMD64"} else "-mcpu=native"


@functools.cache
def _version(compiler: str) -> str:
    def answer(*arguments: str) -> str:
        ended = run_command([compiler, *arguments], environment={"LC_ALL": "C"})
        return ended.printed.decode(errors="replace")

    headers = "".join(path.read_text(encoding="utf-8") for path in sorted(_HEADER.parent.glob(f"{_HEADER.stem}*.h")))
    processor = answer(_native_flag(), "-Q", "--help=target")
    return f"{answer('--version').splitlines()[0]}, processor {_digest(processor)}, built-ins {_digest(headers)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def _parallel_function() -> int:
    """Return the address of `GOMP_parallel` in the OpenMP runtime that torch links, 0 where it has none.

    libgomp, LLVM's and Intel's runtime all have it. The search goes through torch's own libraries and theirs, so it
    finds the one runtime that torch uses even where others are loaded.
    """
    try:
        function = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except AttributeError:
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _first_error(log: str) -> str:
    lines = log.splitlines()
    return next((line for line in lines if "error:" in line or "undefined reference" in line), "see its log")


# ---------------------------------------------------------------------------------------------------- the source's text

_DYNAMIC_SHARED = re.compile(
    r"\bextern\b(?P<specifiers>[^;{}=]*?)\b__shared__\b(?P<type>[^;{}=]*?)"
    r"\b(?P<name>\w+)\s*\[\s*\](?P<extents>(?:\s*\[[^\]]*\])*)\s*;"
)
_PARENTHESES = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_ALIGNMENT = re.compile(rf"\b(?:__align__|alignas|__attribute__)\s*{_PARENTHESES}")
_SHARED_ALIGNMENT = re.compile(
    rf"(?P<before>(?:\b(?:static|const|volatile)\s+)*\b__shared__\s+(?:(?:static|const|volatile)\s+)*)"
    rf"(?P<alignment>alignas\s*{_PARENTHESES})"
)
_NAMESPACE_OR_LINKAGE = re.compile(r"(?:\bnamespace(?:\s+[\w:]+)?|\bextern)\s*$")
_LONGEST_NAMESPACE = 200  # characters of a namespace's head that are looked at
_LAUNCH_BOUNDS = re.compile(rf"\b__launch_bounds__\s*(?P<bounds>{_PARENTHESES})\s*(?:void\s+)?(?P<name>\w+)\s*\(")


def translation_unit(variant: Variant) -> str:
    """Return the source that g++ compiles: the variant's text and the lines that export its entry points."""
    text = "\n".join([variant.text, *variant.cuda.headers.values()])
    bounds: dict[str, set[str]] = {}
    for match in _LAUNCH_BOUNDS.finditer(without_comments(text)):
        bounds.setdefault(match["name"], set()).add(match["bounds"][1:-1].strip())
    lines = ['#line 1 "prologue"', host_source(variant.text), '#line 1 "exports"']
    for entry_point in variant.source.entry_points:
        # Of several declarations under different preprocessor conditions nobody here knows which one holds.
        stated = bounds.get(entry_point, set())
        bound = stated.pop() if len(stated) == 1 else MOST_THREADS_PER_BLOCK
        lines.append(f"TUNEBENCH_EXPORT({entry_point}, {bound})")
    return "\n".join(lines) + "\n"


def host_source(text: str) -> str:
    """Return a source with what the header's macros cannot express written as C++; lines keep their numbers.

    Each `extern __shared__ T name[];` becomes a pointer to the running block's dynamic shared memory, since no
    declaration means the same: the array would need an owner of a size that only the launch knows. Inside a function
    the pointer is a local constant; outside, every OpenMP thread sets its own before it runs blocks. Either form is an
    error of the compilation in the other's place.

    `alignas` after `__shared__` moves before it: C++ has it nowhere between the specifiers of a declaration.
    """
    blanked = without_comments(text)

    def pointer(match: re.Match[str]) -> str:
        element = _ALIGNMENT.sub("", f"{match['specifiers']} {match['type']}").strip()
        name, extents = match["name"], match["extents"]
        value = f"reinterpret_cast<{element} (*){extents}>(tunebench::dynamic_shared)"
        if _in_function(blanked, match.start()):
            declaration = f"{element} (* const {name}){extents} = [&] {{ return {value}; }}();"
        else:
            binding = f"const tunebench::SharedArray {name}_shared_array([] {{ {name} = {value}; }});"
            declaration = f"namespace {{ thread_local {element} (*{name}){extents}; {binding} }}"
        return " ".join(declaration.split()) + "\n" * match[0].count("\n")

    parts, end = [], 0
    for match in _DYNAMIC_SHARED.finditer(blanked):
        parts += [text[end : match.start()], pointer(match)]
        end = match.end()
    return _SHARED_ALIGNMENT.sub(r"\g<alignment> \g<before>", "".join([*parts, text[end:]]))


def _cooperates(variant: Variant) -> bool:
    """Return whether threads can wait for each other anywhere in the source: only then it needs what runs such threads.

    A source taken for one that does not, though it does, would not compile: it lacks the functions' declarations.
    """
    return any(_COOPERATION.search(text) for text in (variant.text, *variant.cuda.headers.values()))


def _in_function(blanked: str, position: int) -> bool:
    """Return whether a position stands inside a function, or in a macro, which is used there."""
    line_start = position
    while (line_start := blanked.rfind("\n", 0, line_start)) > 0 and blanked[line_start - 1] == "\\":
        pass
    if re.match(r"\s*#\s*define\b", blanked[line_start + 1 :]):
        return True
    functions: list[bool] = []
    for brace in re.finditer(r"[{}]", blanked[:position]):
        if brace[0] == "{":
            before = blanked[max(0, brace.start() - _LONGEST_NAMESPACE) : brace.start()]
            functions.append(_NAMESPACE_OR_LINKAGE.search(before) is None)
        elif functions:
            functions.pop()
    return any(functions)
