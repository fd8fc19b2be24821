"""A variant: everything that determines one binary of a kernel."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.files import require_regular
from tunebench.tuner.running_text import running_source
from tunebench.tuner.signature import Declaration, Signature, aliases, declarations, signature_of
from tunebench.tuner.space import SearchSpace
from tunebench.tuner.triton_source import TritonSource

HEADER_SUFFIXES = (".cuh", ".h", ".hpp")

_INCLUDES = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_INCLUDES_BY_MACRO = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[^"<\s]', re.MULTILINE)

CPP_TYPE = {"float32": "float", "float64": "double", "float16": "half_t", "bfloat16": "bfloat_t"}
"""The C++ type a kernel sees as `scalar_t`, by torch dtype name; a dtype that is not here has no kernel."""

_ACCUMULATOR = {"double": "double"}
"""The C++ type a kernel sees as `accumulator_t` beside a `scalar_t`: what it computes in, float unless it is here."""

_DEFINED_BY_HEADERS = ("half_t", "bfloat_t")


@dataclass(frozen=True)
class KernelSource:
    """The text of a `.cu` file with the headers it may include.

    Attributes:
        name: the kernel's name, for messages and build folders.
        text: the `.cu` source.
        headers: text by file name of every header that it, or one of these, includes with quotes.
    """

    name: str
    text: str
    headers: Mapping[str, str]

    @classmethod
    def read(cls, path: Path, include: Path | None = None, text: str | None = None) -> KernelSource:
        """Read a source and the headers it includes: those beside it and those of the folder `include`.

        Args:
            text: of the source, which is then not read.

        Raises:
            KernelFolderError: one of them is not UTF-8.
        """
        available: dict[str, str] = {}
        for folder in (include, path.parent):
            for header in sorted(folder.iterdir()) if folder and folder.is_dir() else ():
                if header.suffix in HEADER_SUFFIXES:
                    available[header.name] = _read(header)
        text = _read(path) if text is None else text
        return cls(path.stem, text, _included(text, available))

    @property
    def file(self) -> str:
        """The file's name in messages."""
        return f"{self.name}.cu"

    @cached_property
    def entry_points(self) -> Mapping[str, Declaration]:
        """The `extern "C" __global__` functions that it or its headers declare, by name."""
        return declarations([self.text, *self.headers.values()])

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """The types that names of the source and its headers stand for."""
        return aliases([self.text, *self.headers.values()])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the source and its headers, without their comments."""
        headers = {name: running_source(text) for name, text in sorted(self.headers.items())}
        parts = [running_source(self.text), headers]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


Source: TypeAlias = KernelSource | TritonSource


@dataclass(frozen=True)
class Variant:
    """A kernel source with its compile-time constants fixed, for one architecture.

    Attributes:
        source: the kernel's, in CUDA C++ or in Triton.
        prologue: what fixes the constants: generated C++ that stands before the source, or JSON beside a Triton source.
        architecture: what the binary runs on, such as `sm_90` or `x86_64`.
    """

    source: Source
    prologue: str
    architecture: str

    @property
    def cuda(self) -> KernelSource:
        """Its source, for a compiler of CUDA C++, which is given no other."""
        assert isinstance(self.source, KernelSource), f"{self.source.file} is Triton"
        return self.source

    @property
    def text(self) -> str:
        """The complete translation unit of CUDA C++."""
        return f'{self.prologue}#line 1 "{self.cuda.file}"\n{self.cuda.text}'

    @cached_property
    def signatures(self) -> dict[str, Signature]:
        """The signatures of its entry points, by name."""
        if isinstance(self.source, TritonSource):
            return self.source.signatures(json.loads(self.prologue)["dtype"])
        known = {**self.source.aliases, **aliases([self.prologue])}
        return {name: signature_of(found, known) for name, found in self.source.entry_points.items()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that determines the binary, the compiler apart."""
        parts = [self.source.digest, self.prologue, self.architecture]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read(path: Path) -> str:
    require_regular(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise KernelFolderError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from error


def _included(text: str, available: Mapping[str, str]) -> dict[str, str]:
    """Return those of the available headers that a text includes, directly or through another.

    What stands behind a preprocessor condition counts; a header named by a macro may be any of them.
    """
    found: dict[str, str] = {}
    texts = [text]
    while texts:
        latest = texts.pop()
        if _INCLUDES_BY_MACRO.search(latest):
            return dict(available)
        for name in _INCLUDES.findall(latest):
            if name in available and name not in found:
                found[name] = available[name]
                texts.append(available[name])
    return found


def prologue(
    space: SearchSpace,
    configuration: Configuration,
    dtype: str,
    axes: Mapping[str, int] | None = None,
    options: Mapping[str, tuple[str, tuple[str, ...]]] | None = None,
) -> str:
    """Return the lines that fix a kernel's constants: types, compiled-in axes and options, tunables by their names.

    `scalar_t` is what tensors hold, `accumulator_t` what is computed in: float for half types, which are defined by
    `half.cuh` and `bfloat.cuh` of the shared headers and no more than named here.

    A text-valued tunable becomes an enumeration: `load_hint` with the value `streaming` reads
    `load_hint == load_hint_t::streaming` in the source. A tunable that is inactive in the configuration is fixed at its
    first value, so that the source needs no preprocessor conditions. An option of the problem, such as `mode`, is an
    enumeration too: `mode_option == mode_option_t::train`.

    Args:
        options: by name the value of the problem at hand, and all values there are.
    """
    scalar = CPP_TYPE[dtype]
    lines = [f"struct {scalar};"] if scalar in _DEFINED_BY_HEADERS else []
    lines += [f"using scalar_t = {scalar};", f"using accumulator_t = {_ACCUMULATOR.get(scalar, 'float')};"]
    lines += [f"constexpr long long {name} = {size};" for name, size in (axes or {}).items()]
    lines += [_constant(f"{name}_option", value, values) for name, (value, values) in (options or {}).items()]
    for tunable in space.tunables:
        if not tunable.host:
            lines.append(_constant(tunable.name, configuration.get(tunable.name, tunable.values[0]), tunable.values))
    return "\n".join(lines) + "\n"


def _constant(name: str, value: Value, values: tuple[Value, ...]) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    if isinstance(value, int):
        return f"constexpr int {name} = {value};"
    if isinstance(value, float):
        return f"constexpr double {name} = {value!r};"
    members = ", ".join(str(member) for member in values)
    return f"enum class {name}_t {{ {members} }};\nconstexpr {name}_t {name} = {name}_t::{value};"
