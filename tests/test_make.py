"""What a newcomer types first, in a copy of the repository with nothing of theirs on the machine yet."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

STUDY = 'kernel = "scalar_mul"\ntrials = 3\n\n[sizes]\nM = 64\nN = 64\n'


def _run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, encoding="utf-8"
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what is in the repository, whose virtual environment has this test's Python in it."""
    listed = _run(["git", "ls-files", "-z"], ROOT, dict(os.environ))
    if shutil.which("make") is None or listed.returncode != 0:
        pytest.skip("needs make and a git checkout")
    folder = tmp_path / "clone"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists() and not name.startswith("docs/results/"):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    scripts = folder / ".venv" / "bin"
    scripts.mkdir(parents=True)
    for name in ("python", "tunebench"):
        script = scripts / name
        module = "" if name == "python" else " -m tunebench"
        script.write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    (folder / ".venv" / "installed").touch()
    (folder / "small.toml").write_text(STUDY, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_what_make_tune_says_to_type_next_works(clone: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUNEBENCH_DB", "XDG_", "MAKE"))}
    environment = {**kept, "HOME": str(home), "PYTHONPATH": str(clone / "src")}

    def run(*command: str) -> str:
        ran = _run(command, clone, environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    output = run("make", "tune", "STUDIES=small.toml")
    # Rounds on a busy machine may leave open which is faster, and then nothing is evidence.
    assert re.search(r"scalar_mul \(eval\) agrees: .* from tier '\w+'", output), output
    next_commands = re.findall(r"^  (\.venv/bin/tunebench .*)$", output, re.MULTILINE)
    assert len(next_commands) >= 3 and next_commands[0] == ".venv/bin/tunebench best"
    for command in next_commands:
        assert run("sh", "-c", command)
    assert "scalar_mul" in run("sh", "-c", next_commands[0])
    assert (clone / "report.html").exists()
    assert list(clone.glob("*.db")) == []
