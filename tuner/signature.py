"""The parameters of a source's entry points, as its own text declares them.

Only what a launch has to know is read: the names of the `extern "C" __global__` functions, and of each parameter
whether it is a pointer or which number. A type may be an alias (`using name = type;` or `typedef type name;`) of
such a one. What macros, templates and preprocessor conditions make of a parameter list is not followed: a parameter
of a type that cannot be told is refused when it is launched.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

LEGAL_TYPES = (
    "a pointer, bool, an integer, float, double, __half, __nv_bfloat16, TensorMap, or `using name = type;` of those"
)
"""The legal types of an entry point's parameter, for messages."""


class Kind(enum.StrEnum):
    """The kind of value that a parameter takes; the value is its code in the module `struct`, where there is one."""

    POINTER = "P"
    BOOL = "?"
    INT8 = "b"
    UINT8 = "B"
    INT16 = "h"
    UINT16 = "H"
    INT32 = "i"
    UINT32 = "I"
    INT64 = "q"
    UINT64 = "Q"
    HALF = "e"
    FLOAT = "f"
    DOUBLE = "d"
    BFLOAT16 = "bfloat16"
    TENSOR_MAP = "128s"

    @property
    def code(self) -> str:
        """The code of its memory in the module `struct`."""
        return Kind.UINT16.value if self is Kind.BFLOAT16 else self.value

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        return struct.calcsize(self.code)

    @property
    def is_floating(self) -> bool:
        """Whether it is a floating-point number."""
        return self in (Kind.HALF, Kind.FLOAT, Kind.DOUBLE, Kind.BFLOAT16)

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer, which a bool is not."""
        return not self.is_floating and self not in (Kind.POINTER, Kind.BOOL, Kind.TENSOR_MAP)


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry point.

    Attributes:
        type: as the source spells it.
        kind: what it takes; None where that cannot be told from the text.
        pointee: of a pointer to numbers what they are; None for any other.
    """

    name: str
    type: str
    kind: Kind | None
    pointee: Kind | None = None

    def __str__(self) -> str:
        return f"'{self.name}' ({self.type})"


@dataclass(frozen=True)
class Signature:
    """The parameters of an entry point, in their order."""

    entry_point: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Declaration:
    """An entry point as the text has it: of each parameter its type and its name."""

    name: str
    parameters: tuple[tuple[str, str], ...]


_INTEGERS = {
    "char": Kind.INT8,
    "signed char": Kind.INT8,
    "unsigned char": Kind.UINT8,
    "short": Kind.INT16,
    "unsigned short": Kind.UINT16,
    "int": Kind.INT32,
    "signed": Kind.INT32,
    "unsigned": Kind.UINT32,
    "long": Kind.INT64,
    "unsigned long": Kind.UINT64,
    "long long": Kind.INT64,
    "unsigned long long": Kind.UINT64,
}
_KINDS = {
    "bool": Kind.BOOL,
    "half": Kind.HALF,
    "__half": Kind.HALF,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "__nv_bfloat16": Kind.BFLOAT16,
    "nv_bfloat16": Kind.BFLOAT16,
    "TensorMap": Kind.TENSOR_MAP,
    "size_t": Kind.UINT64,
    "ptrdiff_t": Kind.INT64,
    **{f"int{kind.bytes * 8}_t": kind for kind in (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64)},
    **{f"uint{kind.bytes * 8}_t": kind for kind in (Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64)},
    **_INTEGERS,
}
_QUALIFIERS = {"const", "volatile", "restrict", "__restrict__", "__restrict", "__grid_constant__", "struct", "enum"}
_TYPE_WORDS = {word for type_ in _KINDS for word in type_.split()} | _QUALIFIERS | {"void", "std"}

COMMENT_OR_LITERAL = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?:define|error|pragma|undef)\b(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)
_GLOBAL = re.compile(r"\b__global__\b")
_EXTERN_C = re.compile(r'\bextern\s*"C"[^;{}"]*\Z')
_EXTERN_C_BLOCK = re.compile(r'\bextern\s*"C"\s*\{')
_BEFORE_PARENTHESIS = re.compile(r"\s*(?:(?P<word>\w+)\s*)?(?P<mark>[^\w\s])")
_ALIAS = re.compile(
    r"\busing\s+(?P<name>\w+)\s*=\s*(?P<type>[^;{}]+);|\btypedef\s+(?P<old_type>[^;{}()]+?)\b(?P<old_name>\w+)\s*;"
)
_TOKEN = re.compile(r"\w+|\S")
_LONGEST_HEAD = 400  # characters before `__global__` in which its `extern "C"` is looked for


def without_comments(text: str, *, literals: bool = False) -> str:
    """Return the text with spaces for its comments, and its literals too, every other character in its place.

    Args:
        literals: leave these.
    """

    def blank(match: re.Match[str]) -> str:
        return match[0] if literals and match[0][0] in "\"'" else re.sub(r"[^\n]", " ", match[0])

    return COMMENT_OR_LITERAL.sub(blank, text)


def declarations(texts: Iterable[str]) -> dict[str, Declaration]:
    """Return the entry points that the texts declare, by name; of one that is declared again the first."""
    found: dict[str, Declaration] = {}
    for text in texts:
        if "__global__" in text:
            for declaration in _declarations_in(text):
                found.setdefault(declaration.name, declaration)
    return found


def _declarations_in(text: str) -> Iterator[Declaration]:
    linked = _DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), without_comments(text, literals=True))
    blanked = without_comments(linked)
    blocks = [(match.end(), _closing(blanked, match.end() - 1)) for match in _EXTERN_C_BLOCK.finditer(linked)]
    for match in _GLOBAL.finditer(blanked):
        start = match.start()
        in_block = any(first <= start < last for first, last in blocks)
        if not in_block and not _EXTERN_C.search(linked[max(0, start - _LONGEST_HEAD) : start]):
            continue
        if (head := _name_and_list(blanked, match.end())) is not None:
            name, inside = head
            parts = [part for part in _parts(inside) if part != "void"]
            yield Declaration(name, tuple(_type_and_name(part, at) for at, part in enumerate(parts, 1)))


def _name_and_list(text: str, position: int) -> tuple[str, str] | None:
    """Return the name of the function declared behind `__global__`, and the text in its parentheses.

    Before the name there may be words, such as `void`, and words with parentheses, such as `__launch_bounds__(256)`.
    """
    name = ""
    while (match := _BEFORE_PARENTHESIS.match(text, position)) is not None or position < len(text):
        if match is None:  # two words side by side: the first is none of a name
            word = re.compile(r"\s*\w+").match(text, position)
            if word is None:
                return None
            position = word.end()
            continue
        if match["mark"] != "(":
            return None
        name = match["word"] or ""
        end = _closing(text, match.end() - 1)
        following = text[end + 1 : end + 2 + len(text[end + 1 :]) - len(text[end + 1 :].lstrip())].strip()
        if following in ("{", ";"):
            return (name, text[match.end() : end]) if name else None
        position = end + 1
    return None


def _closing(text: str, opening: int) -> int:
    """Return where the parenthesis or brace that opens there is closed; the end of the text where it is not."""
    depth = 0
    for match in re.compile(r"[(){}]").finditer(text, opening):
        depth += 1 if match[0] in "({" else -1
        if depth == 0:
            return match.start()
    return len(text)


def _parts(inside: str) -> list[str]:
    """Return a parameter list at its commas, those inside brackets apart."""
    parts, depth, start = [], 0, 0
    for at, mark in enumerate(inside):
        depth += (mark in "(<[{") - (mark in ")>]}")
        if mark == "," and depth == 0:
            parts.append(inside[start:at])
            start = at + 1
    parts.append(inside[start:])
    return [" ".join(part.split()) for part in parts] if inside.strip() else []


def _type_and_name(part: str, number: int) -> tuple[str, str]:
    """Return a parameter's type and its name; one without a name has its number."""
    tokens = _TOKEN.findall(part.partition("=")[0])
    if "[" in tokens:  # `float x[]` is a pointer
        tokens = [*tokens[: tokens.index("[") - 1], "*", tokens[tokens.index("[") - 1]]
    named = len(tokens) > 1 and re.match(r"[A-Za-z_]", tokens[-1]) and tokens[-1] not in _TYPE_WORDS
    if named and tokens[-2] != ":" and any(token not in _QUALIFIERS for token in tokens[:-1]):
        return _spelt(tokens[:-1]), tokens[-1]
    return _spelt(tokens), f"parameter {number}"


def _spelt(tokens: list[str]) -> str:
    """Return a type with spaces between its words, as people write it."""
    return re.sub(r" (?=[*&,>:<])|(?<=[<:]) ", "", " ".join(tokens))


def aliases(texts: Iterable[str]) -> dict[str, str]:
    """Return the types that names stand for, where all texts agree on one."""
    found: dict[str, set[str]] = {}
    for text in texts:
        for match in _ALIAS.finditer(without_comments(text)):
            name, type_ = match["name"] or match["old_name"], match["type"] or match["old_type"]
            found.setdefault(name, set()).add(" ".join(type_.split()))
    return {name: types.pop() for name, types in found.items() if len(types) == 1}


def signature_of(declaration: Declaration, known: Mapping[str, str]) -> Signature:
    """Return the signature of an entry point.

    Args:
        known: types by the names that stand for them.
    """
    parameters = []
    for type_, name in declaration.parameters:
        if type_.count("*"):
            pointee = kind_of(type_[: type_.index("*")], known) if type_.count("*") == 1 else None
            parameters.append(Parameter(name, type_, Kind.POINTER, pointee))
        else:
            parameters.append(Parameter(name, type_, kind_of(type_, known)))
    return Signature(declaration.name, tuple(parameters))


def kind_of(type_: str, known: Mapping[str, str]) -> Kind | None:
    """Return the kind that a type other than a pointer takes; None where that cannot be told."""
    followed: set[str] = set()
    while True:
        words = [word for word in _TOKEN.findall(type_.replace("std::", "")) if word not in _QUALIFIERS]
        # `long int unsigned` is `unsigned long`.
        if len(words) > 1 and "int" in words and set(words) <= {"int", "long", "short", "signed", "unsigned"}:
            words.remove("int")
        if set(words) <= {"long", "short", "char", "signed", "unsigned", "int"}:
            words.sort(key=("unsigned", "signed").__contains__, reverse=True)
            if words[:1] == ["signed"] and len(words) > 1 and words[1] != "char":
                words = words[1:]
        spelt = " ".join(words)
        if spelt in _KINDS:
            return _KINDS[spelt]
        if spelt in followed or spelt not in known:
            return None
        followed.add(spelt)
        type_ = known[spelt]
