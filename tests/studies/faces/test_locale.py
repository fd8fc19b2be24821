"""What is measured and found does not depend on the locale; only what a terminal can show does."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine
from processes import ended

from tunebench.db.connection.database import open_database

pytestmark = pytest.mark.usefixtures("short_studies")

LOOK = """
import json, locale, sys, warnings
warnings.filterwarnings("error", category=EncodingWarning, module=r"tunebench\\.")
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.kernels.runtime.shipped import files_of, is_stale, read_file
from tunebench.tuner.reference import load_reference

kernels = [load_model(name).kernel for name in [*kernel_names(), sys.argv[1]]]
for kernel in kernels:
    load_reference(kernel.folder / "reference.py")
print(json.dumps({
    "encoding": locale.getencoding(),
    "digests": [kernel.digest for kernel in kernels],
    "served": [file.name for kernel in kernels for file in files_of(kernel) if not is_stale(kernel, read_file(file))],
}))
"""


@pytest.fixture(scope="module")
def latin_1(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a locale whose text is ISO-8859-1, made here since few machines keep one."""
    if shutil.which("localedef") is None:
        pytest.skip("no localedef to make a locale with")
    folder = tmp_path_factory.mktemp("locale")
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / "en_US.ISO-8859-1")]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no sources of locales on this machine: {made.stderr.decode(errors='replace').strip()}")
    return {"LOCPATH": str(folder), "LC_ALL": "en_US.ISO-8859-1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A kernel folder whose every text has letters beyond ASCII, in its comments and in what runs."""
    made = tmp_path / "µ" / "gemm_div_sum_scale"
    shutil.copytree(Path(__file__).parents[3] / "kernels" / "gemm_div_sum_scale", made)
    (made / "gemm_div_sum_scale.cu").open("a", encoding="utf-8").write("// 3 µs × 2\n")
    (made / "reference.py").open("a", encoding="utf-8").write("unit = 'µs'\n")
    return made


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own that follows its locale."""
    locale = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return ended(sys.executable, *arguments, **locale, **environment)


@pytest.mark.slow
def test_kernels_are_the_same_and_their_results_found_under_any_locale(folder: Path, latin_1: dict[str, str]) -> None:
    seen = []
    for environment in ({"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, latin_1):
        done = run(["-X", "warn_default_encoding", "-c", LOOK, str(folder)], **environment)
        assert done.returncode == 0, done.stderr
        seen.append(json.loads(done.stdout))
    assert [len({look["encoding"] for look in seen}), len(seen[0]["digests"])] == [3, 6]
    assert seen[0]["digests"] == seen[1]["digests"] == seen[2]["digests"]
    assert seen[0]["served"] == seen[1]["served"] == seen[2]["served"]
    assert "nvidia-h200.json" in seen[0]["served"]


@pytest.mark.slow
def test_a_terminal_without_the_letters_gets_their_escapes(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    open_database(database).close()
    question = ["-m", "tunebench", "query", "select '3 ' || char(181) || 's' as time", "--db", str(database)]
    shown = run(question, LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert r"3 \xb5s" in shown.stdout
    refused = run(["-m", "tunebench", "tune", "scalar_mül"], LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert r"tunebench: unknown kernel 'scalar_m\udcc3\udcbcl'" in refused.stderr.splitlines()[-1]


def test_a_closed_output_is_nobody_elses(tmp_path: Path, command_line: CommandLine) -> None:
    """Without it the database's file would have the number of the standard output, and be printed into."""
    open_database(tmp_path / "a.db").close()
    command = [sys.executable, "-m", "tunebench", "db", "check", "--db", str(tmp_path / "a.db")]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command], check=False)
    assert done.returncode == 2, "what there was to print is lost"
    assert command_line("db", "check", "--db", tmp_path / "a.db").code == 0
