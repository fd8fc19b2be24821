"""Lists folders and files by their own first sentences: `python -m tests.folder_listing > docs/folders.md`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ("tuner", "db", "kernels", "studies")

_HEAD = """# Folders and files

Made by `python -m tests.folder_listing > docs/folders.md` from the first sentence of every module.
[Architecture](architecture.md) says why they are where they are. A layer imports from those above it on this page only.
"""


def listing() -> str:
    """The listing as Markdown."""
    return _HEAD + "".join(text for layer in LAYERS for folder in _folders(ROOT / layer) for text in _folder(folder))


def _folders(folder: Path) -> Iterator[Path]:
    """A folder and those below it that have modules in them."""
    yield folder
    for below in sorted(path for path in folder.iterdir() if path.is_dir()):
        if below.name != "versions" and any(below.glob("*.py")):
            yield from _folders(below)


def _folder(folder: Path) -> Iterator[str]:
    name = folder.relative_to(ROOT).as_posix()
    yield f"\n## {name}/\n\n"
    if (folder / "__init__.py").exists() and (text := _first_sentence(folder / "__init__.py")):
        yield f"{text}\n\n"
    modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    if modules:
        yield "| file | what is in it |\n| --- | --- |\n"
        yield from (f"| `{path.name}` | {_first_sentence(path)} |\n" for path in modules)


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    print(listing(), end="")
