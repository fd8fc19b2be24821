"""Imports go one way: between the layers, between the folders of a layer, and between modules.

All imports of a file count: those inside functions and under TYPE_CHECKING as well, since what a reader has to
know of another module does not depend on when it is imported.
"""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tunebench

ROOT = Path(__file__).parent.parent

ORDER = {
    "tuner": (".", "compile", "timing", "gate", "search", "study"),
    "db": (".", "schema", "connection", "entries", "queries", "exchange", "upkeep"),
    "kernels": (".", "runtime", "shared", "blocks"),
    "studies": (".", "request", "display", "writing", "tuning", "checking", "sweep", "inductor", "serving", "faces"),
}
"""The layers, and in each its folders (`.` is what lies beside them): whatever is imported comes before. A kernel's own
folder comes after all of these, and knows nothing of another kernel's."""


def name_of(path: Path) -> str:
    """A module's name within the package, such as `tuner.gate.quick`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FACE = {**tunebench._HOME, **tunebench._MODULES}
FILES = {name_of(path): path for layer in ORDER for path in sorted((ROOT / layer).rglob("*.py"))}


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports anywhere in it, by their names within it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                is_module = whole.removeprefix("tunebench.") in FILES
                # What the package's face names is imported from its home; everyone may ask for the version.
                home = FACE.get(alias.name, whole) if node.module == "tunebench" else str(node.module)
                found.add(whole if is_module else home)
    ours = {name.removeprefix("tunebench.") for name in found if name.split(".")[0] == "tunebench"}
    return ours - {"__version__", "tunebench"}  # the face itself is above all layers


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    return {name: imports_of(path) - {name} for name, path in FILES.items()}


def place(name: str) -> tuple[int, int]:
    """Where a module stands in the order."""
    layer, *rest = name.split(".")
    is_folder = len(rest) > 1 or (rest and FILES[name].name == "__init__.py")
    folder = rest[0] if is_folder else "."
    folders = ORDER[layer]
    if folder not in folders:
        assert layer == "kernels" or (layer == "db" and folder == "."), (
            f"{name} is in a folder without a place in ORDER"
        )
        return list(ORDER).index(layer), len(folders)
    return list(ORDER).index(layer), folders.index(folder)


def test_every_import_is_of_a_module_that_is_there() -> None:
    for name, imported in imports().items():
        assert imported <= FILES.keys(), f"{name} imports {imported - FILES.keys()} of tunebench"


def test_a_module_imports_only_what_comes_before_it() -> None:
    climbing = [(name, one) for name, imported in imports().items() for one in imported if place(one) > place(name)]
    assert not climbing


def test_kernels_know_nothing_of_each_other() -> None:
    shared = ORDER["kernels"]
    for name, imported in imports().items():
        layer, folder, *_ = [*name.split("."), ""]
        if layer == "kernels" and folder not in shared:
            others = {one.split(".")[1] for one in imported if one.startswith("kernels.")} - {*shared, folder}
            assert not others, f"{name} imports {others}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize(
    "text",
    [
        "from tunebench import studies",
        "import tunebench.studies.tuning.tune",
        "from tunebench.studies.tuning import tune",
        "def f():\n    from tunebench.studies.tuning.tune import tune",
        "if TYPE_CHECKING:\n    from tunebench.studies.tuning.tune import tune",
        "from tunebench import tune",
    ],
)
def test_every_form_of_an_import_is_seen(text: str, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(text, encoding="utf-8")
    (seen,) = imports_of(file)
    assert seen in ("studies", "studies.tuning.tune", "studies.faces.api")


def test_the_package_is_the_four_folders() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "src" / "tunebench").iterdir() if path.is_symlink()}
    assert links == {layer: ROOT / layer for layer in ORDER}
