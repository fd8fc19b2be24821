"""Bytecode is kept where an installation keeps none, and nowhere else; in processes of their own."""

import compileall
import os
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import sys
from tunebench.tuner.bytecode import keep_bytecode
keep_bytecode("a_package")
import a_package
print(sys.pycache_prefix or "", sys.dont_write_bytecode)
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.isolation import run_isolated
start_forkserver()
run_isolated(60.0, exec, "import another_package")
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with two packages, without bytecode."""
    for name in ("a_package", "another_package"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text("answer = 42\n", encoding="utf-8")
    return tmp_path / "site"


def kept(folder: Path) -> set[str]:
    """Return the packages whose bytecode is in a folder."""
    return {path.parent.name for path in folder.rglob("__init__.*.pyc") if "package" in path.parent.name}


def run(installed: Path, cache: Path, **variables: str) -> str:
    """Return what the script prints, with the packages to import and a cache folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"TUNEBENCH_CACHE": str(cache), "PYTHONPATH": f"{installed}:{environment.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", _SCRIPT]
    return subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_bytecode_is_kept_where_python_writes_none_and_by_other_processes_too(installed: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    told = run(installed, cache, PYTHONDONTWRITEBYTECODE="1")
    assert told == f"{cache / 'bytecode'} False"
    assert kept(cache) == {"a_package", "another_package"} and not list(installed.rglob("*.pyc"))
    assert run(installed, cache, PYTHONDONTWRITEBYTECODE="1") == told  # now that it is there


def test_bytecode_stays_where_python_writes_it(installed: Path, tmp_path: Path) -> None:
    assert run(installed, tmp_path / "cache") == "False"
    assert not kept(tmp_path / "cache")


def test_bytecode_that_is_there_is_used(installed: Path, tmp_path: Path) -> None:
    assert compileall.compile_dir(installed, quiet=1)
    assert run(installed, tmp_path / "cache", PYTHONDONTWRITEBYTECODE="1") == "True"
    assert not kept(tmp_path / "cache")


def test_nothing_is_kept_where_others_could_write_it(installed: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "bytecode").mkdir(parents=True)
    (cache / "bytecode").chmod(0o777)
    assert run(installed, cache, PYTHONDONTWRITEBYTECODE="1") == "True"
    assert not kept(cache)
