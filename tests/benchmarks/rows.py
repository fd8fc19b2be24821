"""The rows of a benchmark, printed and kept one by one: a run that is cut off goes on where it was."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from tunebench.tuner.device import find_device
from tunebench.tuner.files import whole_file
from tunebench.tuner.settings import Setting, described, in_force

Row = dict[str, Any]

_ROOT = Path(__file__).parents[2]
_SOURCES = (".py", ".cu", ".cuh", ".toml")


class Rows:
    """What one benchmark found: each row is printed and written as soon as it is there, with the seconds it took.

    Until all rows are there they stand in `FILE.part`. A run that finds such a file, of this device, this torch, these
    sources and settings, prints its rows and makes the others. What was of something else begins anew.

    Args:
        file: where to put them at the end; None keeps none.
        keys: what tells rows apart.
        line: a row as it is printed.
        settings: all else that the rows depend on.
    """

    def __init__(self, file: Path | None, keys: tuple[str, ...], line: Callable[[Row], str], **settings: str) -> None:
        self._file, self._keys, self._line = file, keys, line
        self._head = {
            "device": _device(),
            "torch": torch.__version__,
            "sources": digest_of_sources(),
            "eager": eager(),
            **settings,
        }
        self._rows: list[Row] = []
        self._began = time.perf_counter()

    def __enter__(self) -> Rows:
        if self._part is not None and self._part.exists():
            found = json.loads(self._part.read_text(encoding="utf-8"))
            if {name: value for name, value in found.items() if name != "rows"} == self._head:
                self._rows = found["rows"]
                print(f"{len(self._rows)} rows are in {self._part} already")
                for row in self._rows:
                    self._print(row)
            else:
                print(f"{self._part} is of another device, torch or source, or of other settings: begun anew")
        print(f"eager: {self._head['eager']}", flush=True)
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        if kind is None:
            print(f"{len(self._rows)} rows took {sum(row['seconds'] for row in self._rows):.0f} s", flush=True)
            if self._part is not None and self._file is not None:
                self._write()
                self._part.replace(self._file)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def has(self, *values: Any) -> bool:
        """Whether the row is there that has these values under its keys; if not, it is being made from now on."""
        self._began = time.perf_counter()
        return any([row[key] for key in self._keys] == [*values] for row in self._rows)

    def add(self, row: Row) -> None:
        """Print a row and keep it."""
        self._rows.append({**row, "seconds": round(time.perf_counter() - self._began, 1)})
        self._print(self._rows[-1])
        self._write()
        self._began = time.perf_counter()

    @property
    def _part(self) -> Path | None:
        return None if self._file is None else part_of(self._file)

    def _print(self, row: Row) -> None:
        print(f"{self._line(row)}  ({row['seconds']:.0f} s)", flush=True)

    def _write(self) -> None:
        if self._part is not None:
            with whole_file(self._part) as stream:
                stream.write((json.dumps({**self._head, "rows": self._rows}, indent=1) + "\n").encode())


def part_of(file: Path) -> Path:
    """Where the rows of a run are that has not ended."""
    return file.with_name(f"{file.name}.part")


def read_rows(file: Path) -> tuple[list[Row], bool]:
    """What is there of a benchmark's rows, and whether they are all of them."""
    for place in (file, part_of(file)):
        if place.exists():
            found = json.loads(place.read_text(encoding="utf-8"))
            return found["rows"] if isinstance(found, dict) else found, place == file
    return [], False


def require_gpu() -> None:
    """End the program where there is none."""
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and torch finds none here")


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def digest_of_sources() -> str:
    """A digest of what the rows are made with."""
    state = hashlib.sha256()
    for folder in ("tuner", "kernels", "studies/writing", "tests/benchmarks"):
        for path in sorted(one for one in (_ROOT / folder).rglob("*") if one.suffix in _SOURCES):
            state.update(path.read_bytes())
    return state.hexdigest()[:16]


def eager() -> str:
    """Say which of PyTorch's settings are in force in this process."""
    return described(in_force(Setting, find_device(None).torch_device.type))
