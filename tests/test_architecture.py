"""Imports go one way: tuner <- db <- kernels <- studies."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("tuner", "db", "kernels", "studies")


def imported(path: Path) -> set[str]:
    """The layers that a file imports from, anywhere in it."""
    layers = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        layers |= {name.split(".")[1] for name in names if name.startswith("tunebench.")}
    return layers & set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_itself_and_what_lies_below_it(layer: str) -> None:
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    files = list((ROOT / layer).rglob("*.py"))
    assert files
    for path in files:
        assert imported(path) <= allowed, f"{path.relative_to(ROOT)} imports {imported(path) - allowed}"


def test_the_package_is_the_four_folders() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "src" / "tunebench").iterdir() if path.is_symlink()}
    assert links == {layer: ROOT / layer for layer in LAYERS}
