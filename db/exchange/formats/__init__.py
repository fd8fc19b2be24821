"""File formats of results: one module a format behind `Format`, and the explicit list of them.

`tunebench.db.exchange.files` moves entries between files and databases.
"""

from __future__ import annotations

from tunebench.db.exchange.formats.base import Format, FormatName, ImportOptions
from tunebench.db.exchange.formats.csv_table import CsvFormat
from tunebench.db.exchange.formats.json_lines import JsonLinesFormat
from tunebench.db.exchange.formats.kernel_tuner import KernelTunerFormat
from tunebench.db.exchange.formats.parquet import ParquetFormat
from tunebench.db.exchange.formats.t4 import T4Format
from tunebench.tuner.errors import UnknownNameError

FORMATS: dict[FormatName, Format] = {
    one.name: one for one in (JsonLinesFormat(), T4Format(), KernelTunerFormat(), CsvFormat(), ParquetFormat())
}


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        UnknownNameError: there is none; the message has the nearest names.
    """
    if name not in set(FormatName):
        raise UnknownNameError("format", name, list(FormatName))
    return FORMATS[FormatName(name)]


__all__ = ["FORMATS", "Format", "FormatName", "ImportOptions", "format_named"]
