"""The tutorial works from an empty folder, cell by cell, and the notebook is the same page."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest
from notebook import PAGE, notebook
from processes import ended
from warm_process import commands_in

ROOT = Path(__file__).parents[1]


def test_the_notebook_is_the_page() -> None:
    text = PAGE.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert text == notebook(), "run: python -m tests.notebook > docs/tutorial.ipynb"


@pytest.mark.slow
def test_the_cells_run_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Path) -> None:
    commands, folder = tmp_path / "bin", tmp_path / "work"
    commands_in(commands, warm)
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "TUNEBENCH_DB": str(tmp_path / "results.db"),
    }.items():
        monkeypatch.setenv(name, value)
    printed, names = [], {"__name__": "notebook"}
    for cell in json.loads(PAGE.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            printed.append(run("".join(cell["source"]), names))
    text = "\n".join(printed)
    assert "class ModelNew(blocks.Rows, Model):" in text
    assert "TODO" not in text
    assert "gated_norm, eval: a drop-in for the reference" in text
    assert "gated_norm, eval: NOT right for the problem" in text
    assert "torch.Size([256, 768])" in text


def run(source: str, names: dict[str, object]) -> str:
    """What a cell prints."""
    magic, _, rest = source.partition("\n")
    if magic.startswith("%%writefile "):
        Path(magic.split()[1]).write_text(rest + "\n", encoding="utf-8")
        return ""
    if magic == "%%bash":
        done = ended("bash", "-euo", "pipefail", "-c", rest)
        assert done.returncode == 0, f"{rest}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(source, names)
    return output.getvalue()
