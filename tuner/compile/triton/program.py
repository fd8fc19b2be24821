"""One variant of a Triton source through Triton, by `main` in a process of its own, which imports no torch."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OUTPUT = "variant.binaries"
"""The file that `main` writes in its folder."""

_WARP_SIZE = 32
_MODULE = "tunebench_triton_source"
_DIVISIBLE = ["tt.divisibility", 16]


class RefusedError(Exception):
    """Triton refused the source; the message begins with one line that says why."""


def main(text: str, file: str, fixed: Mapping[str, Any], architecture: int) -> None:
    """Compile what the request says: binaries into a file, the log to standard output; exit code 1 for a refusal."""
    os.environ.pop("TRITON_INTERPRET", None)
    # ptxas's figures; and nothing is taken from a cache, which would come without them.
    os.environ.update(TRITON_DUMP_PTXAS_LOG="1", TRITON_ALWAYS_COMPILE="1", TRITON_CACHE_DIR=str(Path.cwd() / "cache"))
    source = Path(file).absolute()
    source.write_text(text, encoding="utf-8")
    try:
        head, binaries = _compiled(source, fixed, architecture)
    except RefusedError as refusal:
        sys.stdout.write(f"\n{refusal}\n")
        sys.exit(1)
    Path(OUTPUT).write_bytes(json.dumps(head).encode() + b"\n" + b"".join(binaries))


def _compiled(source: Path, fixed: Mapping[str, Any], architecture: int) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Compile each entry point twice: for any arguments, and for those that are divisible where they can be."""
    functions = _functions_of(source)
    head: list[dict[str, Any]] = []
    binaries: list[bytes] = []
    for name, of_function in fixed["functions"].items():
        for aligned in (False, True):
            figures, binary = _binary(source, functions, name, of_function, fixed["options"], architecture, aligned)
            head.append({"entry_point": name, "aligned": aligned, "bytes": len(binary), **figures})
            binaries.append(binary)
    return head, binaries


def _functions_of(source: Path) -> Any:
    spec = importlib.util.spec_from_file_location(_MODULE, source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RefusedError(f"{source.name}: {type(error).__name__}: {error}") from error
    return module


def _binary(
    source: Path,
    functions: Any,
    name: str,
    fixed: Mapping[str, Any],
    options: Mapping[str, Any],
    architecture: int,
    aligned: bool,
) -> tuple[dict[str, Any], bytes]:
    """Return a binary, and the data that a launch needs of it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(functions, name)
    constants = {one.name: one.default for one in function.params if one.is_constexpr and one.has_default}
    constants |= fixed["constants"]
    types = {one: fixed["types"].get(one, "constexpr") for one in function.arg_names}
    divisible = [one for one, type_ in types.items() if type_.startswith("*") or one in fixed["divisible"]]
    attributes = {(function.arg_names.index(one),): [_DIVISIBLE] for one in divisible} if aligned else {}
    # Versions differ in whether a product and a sum are fused where nobody says.
    given = {"enable_fp_fusion": True, **options}
    try:
        compiled = triton.compile(
            ASTSource(function, types, constants, attributes),
            target=GPUTarget("cuda", architecture, _WARP_SIZE),
            options=given,
        )
    except Exception as error:
        raise RefusedError(_told(error, source)) from error
    metadata = compiled.metadata
    if metadata.global_scratch_size or getattr(metadata, "num_ctas", 1) != 1:
        raise RefusedError(
            f"{source.name}: '{name}' needs memory that Triton's own launcher allocates (descriptors made on the "
            "device), or a cluster of blocks: launch it by Triton itself"
        )
    hidden = _parameters_in(compiled.asm["ptx"]) - sum(type_ != "constexpr" for type_ in types.values())
    figures = {
        "name": metadata.name,
        "threads": metadata.num_warps * _WARP_SIZE,
        "shared": metadata.shared,
        "hidden": hidden,
        "divisible": list(fixed["divisible"]) if aligned else [],
    }
    return figures, compiled.asm["cubin"]


def _parameters_in(ptx: str) -> int:
    """Return how many parameters a kernel has: Triton's own, for scratch memory, follow those of the source."""
    head = ptx[ptx.index(".entry") :]
    return head[: head.index(")")].count(".param ")


def _told(error: BaseException, source: Path) -> str:
    """Return Triton's message: in one line, the innermost place in the source first; then its whole text."""
    from triton.compiler.errors import CompilationError

    chain = _chain(error)
    text = "\n".join(dict.fromkeys(str(one).strip() for one in chain if str(one).strip()))
    place, message = source.name, ""
    for one in chain:
        if isinstance(one, CompilationError):
            place = f"{source.name}:{_line(one, source)}"
            message = one.error_message or ""
    if not message:
        message = (str(chain[-1]).strip() or type(chain[-1]).__name__).splitlines()[0]
    return f"{place}: {message.strip().splitlines()[0]}\n{text}"


def _chain(error: BaseException) -> Sequence[BaseException]:
    found = [error]
    while (cause := found[-1].__cause__) is not None and cause not in found:
        found.append(cause)
    return found


def _line(error: Any, source: Path) -> int:
    """Return the line of the file that a compilation error is about: its own counts from the function's first."""
    first = next((line for line in (error.src or "").splitlines() if line.startswith("def ")), None)
    lines = source.read_text(encoding="utf-8").splitlines()
    start = lines.index(first) if first in lines else 0
    return start + int(getattr(error.node, "lineno", 1))
