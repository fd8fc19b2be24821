"""The tutorial as a notebook: `python -m tests.notebook > docs/tutorial.ipynb`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"

_BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```\n", re.M | re.S)
_MAGIC = {"sh": "%%bash\n", "python": ""}


def cells() -> Iterator[tuple[str, str]]:
    """Kind and text of each cell: what is said between two blocks, and the blocks."""
    text, place = PAGE.read_text(encoding="utf-8"), 0
    for found in _BLOCK.finditer(text):
        if said := text[place : found.start()].strip():
            yield "markdown", said
        magic = f"%%writefile {found['file']}\n" if found["file"] else _MAGIC[found["language"]]
        yield "code", magic + found["text"].rstrip()
        place = found.end()
    if said := text[place:].strip():
        yield "markdown", said


def notebook() -> str:
    """The notebook's text."""
    made: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells()):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append({**cell, "source": text.splitlines(keepends=True)})
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": made, "metadata": about, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


if __name__ == "__main__":
    print(notebook(), end="")
