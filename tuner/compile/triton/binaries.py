"""Content of a Triton source's build: cubins with the data that a launch needs of each, or the source itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Binary:
    """One entry point in one form.

    Attributes:
        entry_point: the function in the source, and `name`, what its cubin calls it.
        aligned: it needs addresses that are divisible by 16, and so the integers in `divisible`.
        divisible: names of parameters.
        threads: of a block.
        shared: dynamic shared memory, bytes a block.
        hidden: pointers behind the source's parameters, for scratch memory that it does not use.
    """

    entry_point: str
    name: str
    aligned: bool
    divisible: tuple[str, ...]
    threads: int
    shared: int
    hidden: int
    code: bytes


def interpreted_content(text: str, fixed: Mapping[str, Any]) -> bytes:
    """Return the content of a build that Triton's interpreter runs: a line of JSON, and then the source."""
    constants = {name: one["constants"] for name, one in fixed["functions"].items()}
    return json.dumps({"constants": constants}).encode() + b"\n" + text.encode()


def interpreted_parts(content: bytes) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the source, and the constants of each entry point by name."""
    head, _, text = content.partition(b"\n")
    constants: dict[str, dict[str, Any]] = json.loads(head)["constants"]
    return text.decode(), constants


def is_for_gpu(content: bytes) -> bool:
    """Return whether a build holds cubins."""
    return content.startswith(b"[")


def binaries_in(content: bytes) -> list[Binary]:
    """Return the binaries of a build: a line of JSON, and then the cubins, one behind the other."""
    head, _, code = content.partition(b"\n")
    found, start = [], 0
    for one in json.loads(head):
        size = one.pop("bytes")
        found.append(Binary(**{**one, "divisible": tuple(one["divisible"])}, code=code[start : start + size]))
        start += size
    return found
