"""Kernels that installed packages ship: found by name, like those of tunebench itself."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_kernel import MODEL, REFERENCE, SOURCE

import tunebench
from tunebench.kernels.runtime.installed import installed_names
from tunebench.kernels.runtime.registry import load_model, place_of
from tunebench.studies.request.completion import complete_kernel
from tunebench.tuner.errors import KernelFolderError, UnknownNameError


def install(site: Path, package: str, entries: dict[str, str], kernel: str | None = None) -> None:
    """What pip leaves of a package: its modules, and the folder that describes it."""
    described = site / f"{package}-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    lines = "".join(f"{name} = {module}\n" for name, module in entries.items())
    (described / "entry_points.txt").write_text(f"[tunebench.kernels]\n{lines}", encoding="utf-8")
    (site / package).mkdir()
    (site / package / "__init__.py").write_text("", encoding="utf-8")
    if kernel is not None:
        folder = site / package / kernel
        folder.mkdir()
        for name, text in ((f"{kernel}.cu", SOURCE), ("model.py", MODEL), ("reference.py", REFERENCE)):
            (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python looks for packages in."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] in ("weighing", "counting")]:
        del sys.modules[name]


@pytest.mark.slow
def test_a_kernel_of_an_installed_package_is_found_by_its_name(site: Path, tmp_path: Path) -> None:
    assert installed_names() == []
    install(site, "weighing", {"weigh_installed": "weighing.weigh_installed.model"}, "weigh_installed")
    model = load_model("weigh_installed")
    assert model.kernel.folder == place_of("weigh_installed") == site / "weighing" / "weigh_installed"
    assert model.__module__ == "weighing.weigh_installed.model"
    assert type(pickle.loads(pickle.dumps(model()))) is model
    assert complete_kernel("wei") == ["weigh_installed"]
    (report,) = tunebench.tune("weigh_installed", trials=2, device="cpu", db=tmp_path / "results.db")
    assert (report.kernel, report.outcome.trials) == ("weigh_installed", 2)
    assert [row.kernel for row in tunebench.trials(db=tmp_path / "results.db")] == ["weigh_installed"] * 2


def test_names_that_are_near_are_told(site: Path) -> None:
    install(site, "weighing", {"weigh_installed": "weighing.model"})
    with pytest.raises(UnknownNameError, match="weigh_installed"):
        load_model("weigh_instaled")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"nowhere": "weighing.nowhere.model"}, "kernel 'nowhere' of package weighing: no module 'weighing.nowhere"),
        ({"other": "weighing.inside.model"}, "model.py: the kernel 'inside' is installed as 'other'"),
        ({"empty": "weighing"}, "empty: it has no ModelNew"),
    ],
)
def test_an_entry_that_leads_nowhere_is_one_line(entries: dict[str, str], message: str, site: Path) -> None:
    install(site, "weighing", entries, "inside")
    (name,) = entries
    with pytest.raises(KernelFolderError) as raised:
        load_model(name)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_two_packages_with_a_kernel_of_one_name_are_told_apart_by_folder(site: Path) -> None:
    install(site, "weighing", {"twice": "weighing.twice.model"}, "twice")
    install(site, "counting", {"twice": "counting.twice.model"}, "twice")
    with pytest.raises(KernelFolderError, match="'twice' is in counting and weighing: name the folder"):
        load_model("twice")
    assert load_model(str(site / "counting" / "twice")).kernel.name == "twice"


def test_a_shipped_kernel_is_no_packages(site: Path) -> None:
    install(site, "weighing", {"scalar_mul": "weighing.nowhere"})
    assert load_model("scalar_mul").kernel.name == "scalar_mul"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Model: ...", "a problem, with nothing to tune yet: 'tunebench new problem_kernel --from "),
        ("class Model: ...\nclass ModelNew: ...", "a submission, with nothing to tune: 'tunebench check "),
        ("import torch\nModelNew = torch.nn.ReLU", "a submission, with nothing to tune: 'tunebench check "),
        ("x = 1", "no kernel: it has neither `Kernel.declare(` nor a block"),
    ],
)
def test_a_file_that_is_no_kernel_says_what_to_do_next(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(KernelFolderError) as raised:
        tunebench.tune(file)
    assert message in str(raised.value)
