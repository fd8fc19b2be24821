"""File formats of results: one module a format behind `Format`, and the explicit list of them.

`tunebench.db.exchange.files` moves entries between files and databases.
"""

from __future__ import annotations

from pathlib import Path

from tunebench.db.exchange.formats.base import Format, FormatName, ImportOptions
from tunebench.db.exchange.formats.csv_table import CsvFormat
from tunebench.db.exchange.formats.json_lines import JsonLinesFormat
from tunebench.db.exchange.formats.kernel_tuner import KernelTunerFormat
from tunebench.db.exchange.formats.parquet import ParquetFormat
from tunebench.db.exchange.formats.t4 import T4Format
from tunebench.tuner.errors import member_of

FORMATS: dict[FormatName, Format] = {
    one.name: one for one in (JsonLinesFormat(), T4Format(), KernelTunerFormat(), CsvFormat(), ParquetFormat())
}


_ENDINGS = {
    ".jsonl": FormatName.JSON_LINES,
    ".csv": FormatName.CSV,
    ".parquet": FormatName.PARQUET,
    "t4.json": FormatName.T4,
}


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        UnknownNameError: there is none; the message has the nearest names.
    """
    return FORMATS[member_of(FormatName, "format", name)]


def format_by_name(file: Path) -> Format | None:
    """The format that a file's name says, compressed or not; None where it says none."""
    plain = file.name.lower().removesuffix(".gz")
    return next((FORMATS[form] for ending, form in _ENDINGS.items() if plain.endswith(ending)), None)


__all__ = ["FORMATS", "Format", "FormatName", "ImportOptions", "format_by_name", "format_named"]
