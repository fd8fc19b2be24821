"""What of a binary is executed, so that two of them can be told to be the same program."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_ELF = b"\x7fELF\x02\x01"
"""The beginning of a 64-bit little-endian ELF file."""

_CUDA = 190
"""ELF's number of the machine that a cubin is for."""

_NO_CONTENT = 8
"""The type of a section that has a size and no bytes in the file."""

_INSTRUCTION_BYTES = 16
_BANK_SHIFT, _BANK_BITS = 54, 0b11111
_DATA_BANK = 4
"""The constant bank that holds the addresses of a module's global data."""

_INFO = ".nv.info"
_SIZED = 4
"""The form of an attribute in `.nv.info` that has bytes of its own."""

_BY_SYMBOL = (0x0A, 0x11, 0x12, 0x2F)
"""Attributes that begin with a symbol's number: parameters' place, frame size, least stack size, registers."""

_OF_SYMBOLS = (".symtab", ".strtab", ".shstrtab", ".debug", ".rel.debug", ".rela.debug")
_OF_DATA = (".nv.global", ".nv.constant4", ".rel.nv.constant4", ".rela.nv.constant4")


def machine_code_digest(code: bytes) -> str:
    """SHA-256 of what is executed of a binary: two with equal digests are the same program.

    NVRTC keeps every namespace-scope constant as global data, the tunables' among them, even where the code has their
    values inside its instructions and never reads them. Such data are left out of a cubin, and so are symbols and
    debugging information, as long as no instruction takes the address of any data and none is completed by the loader;
    that is taken from the instructions' encoding, which is the same from Volta on. Cubins from Blackwell on hold a
    second form of everything, from which nothing is left out: there constants make another program. Any other binary
    counts whole.
    """
    if code[:6] != _ELF or struct.unpack_from("<H", code, 18) != (_CUDA,):
        return hashlib.sha256(code).hexdigest()
    sections = list(_sections(code))
    texts = [section for section in sections if section.name.startswith(".text")]
    completed = any(section.content for section in sections if section.name.startswith((".rel.text", ".rela.text")))
    if completed or any(_reads_data(section.content) for section in texts):
        return hashlib.sha256(code).hexdigest()
    names = _symbol_names({section.name: section.content for section in sections})
    executed = [section for section in sections if not section.name.startswith(_OF_SYMBOLS + _OF_DATA)]
    parts = [
        (one.name, one.kind, one.size, _attributes(one.content, names) if one.name.startswith(_INFO) else one.content)
        for one in executed
    ]
    return hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    size: int
    content: bytes


def _sections(code: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", code, 40)
    entry, count, names = struct.unpack_from("<HHH", code, 58)
    headers = [struct.unpack_from("<IIQQQQ", code, table + number * entry) for number in range(count)]
    texts = headers[names][4]
    for name, kind, _, _, offset, size in headers:
        begin = texts + name
        content = b"" if kind == _NO_CONTENT else code[offset : offset + size]
        yield _Section(code[begin : code.index(b"\0", begin)].decode(), kind, size, content)


def _reads_data(text: bytes) -> bool:
    """Whether an instruction may have an operand in the bank of data addresses; a number may look like one."""
    firsts = (word for word, _ in struct.iter_unpack("<QQ", text[: len(text) // _INSTRUCTION_BYTES * 16]))
    return any(word >> _BANK_SHIFT & _BANK_BITS == _DATA_BANK for word in firsts)


def _symbol_names(contents: Mapping[str, bytes]) -> list[str]:
    texts = contents.get(".strtab", b"")
    begins = (begin for begin, *_ in struct.iter_unpack("<IBBHQQ", contents.get(".symtab", b"")))
    return [texts[begin : texts.index(b"\0", begin)].decode() for begin in begins]


def _attributes(info: bytes, names: Sequence[str]) -> list[tuple[int, int, int | str, bytes]]:
    """What is said of the entry points, with the names of symbols: their numbers depend on the data beside them."""
    found: list[tuple[int, int, int | str, bytes]] = []
    position = 0
    while position + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, position)
        position += 4
        if form != _SIZED:
            found.append((form, attribute, value, b""))
            continue
        content = info[position : position + value]
        position += value
        if attribute in _BY_SYMBOL and len(content) >= 4:
            found.append((form, attribute, names[int.from_bytes(content[:4], "little")], content[4:]))
        else:
            found.append((form, attribute, value, content))
    return sorted(found, key=repr)
