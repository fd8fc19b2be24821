"""The package: what the wheel and the source distribution hold, and facts that stand in several files."""

from __future__ import annotations

import email
import importlib.util
import re
import sys
import tarfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from command_line import CommandLine
from processes import ended

import tunebench

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.slow
def test_the_distributions_are_whole(tmp_path: Path) -> None:
    for package in ("build", "twine"):
        pytest.importorskip(package)
    built = ended(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    checked = ended(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    assert checked.returncode == 0, checked.stdout
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(next(name for name in names if name.endswith("METADATA"))))
    for folder in ("tuner", "db", "kernels", "studies"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".cu", ".cuh", ".toml", ".jinja", ".css", ".js"}:
                assert f"tunebench/{file.relative_to(ROOT)}" in names
    assert any(re.search("tuned/.*json$", name) for name in names)
    readme = str(metadata.get_payload())
    assert "# tunebench" in readme
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", readme) == []
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/test_package.py", "docs/gate.md", "CITATION.cff", ".ci/run", "setup.py", "mkdocs.yml"} <= held


def test_files_agree_about_the_project() -> None:
    repository = PROJECT["urls"]["Repository"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'repository-code: "{repository}"' in citation and f"version: {tunebench.__version__}\n" in citation
    assert f"repo_url: {repository}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"{repository}/security/" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"## {tunebench.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_dependency_has_its_line() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    requirements = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    for requirement in chain.from_iterable(requirements.values()):
        name = re.split(r"[\[<>=]", requirement)[0]
        assert name == "tunebench" or re.search(rf"^\| .*\b{name.removesuffix('-cu12')}\b", page, re.M), name


def test_the_site_lists_every_public_name() -> None:
    spec = importlib.util.spec_from_file_location("documentation_site", ROOT / "docs" / "site.py")
    assert spec is not None and spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    listed = [name.partition(".")[0] for names in site.OBJECTS.values() for name in names.split()]
    assert sorted(set(listed)) == sorted(tunebench.__all__)


def test_a_missing_extra_is_a_line_with_the_command(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy", None)
    done = run("replay", "some.db", "--sampler", "optuna:GPSampler")
    assert re.search(r"needs scipy: pip install 'tunebench\[scipy\]'$", done.error)
