"""A user's files that crash, hang, end their process or are none: one line, from every command that runs them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from command_line import CommandLine
from sample_kernel import WriteKernel

from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.errors import UserError
from tunebench.tuner.watched import VARIABLE

LOOP = "\nimport time\ntime.sleep(1000)\n"
EXIT = "\nimport os\nos._exit(3)\n"
ABORT = "\nimport os\nos.abort()\n"
CRASH = "\nimport ctypes\nctypes.string_at(0)\n"

ENDS = {
    LOOP: "still running after 1 s: killed; mend it, or give it longer by TUNEBENCH_LOAD_SECONDS=SECONDS",
    EXIT: "the process ended with exit code 3; mend it: it would have ended tunebench itself",
    ABORT: "the process was killed by SIGABRT; mend it: it would have ended tunebench itself",
    CRASH: "the process was killed by SIGSEGV; mend it: it would have ended tunebench itself",
}
COMMANDS = (
    *(("tune", "--trials", "1", "--seconds", "5"), ("check",), ("compare", "default", "reference")),
    *(("bench", "--no-compile"), ("export",), ("space",), ("ship",), ("warm",), ("bundle", "DIR"), ("doctor",)),
)


@pytest.fixture
def folder(write_kernel: WriteKernel) -> Path:
    """A kernel's folder that is well."""
    return write_kernel().kernel.folder


def append(file: Path, text: str) -> int:
    """Add to a file; the number of its last line."""
    whole = file.read_text(encoding="utf-8") + text
    file.write_text(whole, encoding="utf-8")
    return len(whole.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model.py", "reference.py"])
@pytest.mark.parametrize("text", ENDS)
def test_what_ends_or_holds_up_its_process_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    line = append(folder / file, text)
    if text is LOOP:
        monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(UserError) as caught:
        load_model(str(folder))
    where = folder if text is EXIT else f"{folder / file}:{line}"  # who ends so tells nothing
    assert str(caught.value) == f"{where}: loading it: {ENDS[text]}"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_outlives_it(run: CommandLine, folder: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    line = append(folder / "model.py", ABORT)
    ran = run(*(str(tmp_path / "bundle") if one == "DIR" else one for one in command), folder)
    said = f"{ran.out}{ran.err}"
    assert ran.code == (1 if command[0] == "doctor" else 2) and f"{folder}/model.py:{line}" in said.replace("\n", "")
    assert "killed by SIGABRT" in re.sub(r"\s+", " ", said)


def test_a_list_of_kernels_goes_on(run: CommandLine, folder: Path) -> None:
    append(folder / "model.py", EXIT)
    listed = {one["target"]: one["error"] for one in run("kernels", folder.parent, "--json").json}
    assert "exit code 3" in listed[str(folder)] and listed["scalar_mul"] is None


@pytest.mark.parametrize("name", ["model.py", "reference.py", "weigh.cu"])
def test_a_pipe_in_the_place_of_a_file_is_not_read(run: CommandLine, folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    ran = run("tune", folder, "--trials", "1")
    assert ran.error == f"tunebench: {folder / name}: a pipe, a device or a socket is no regular file: put one there"
    assert run("doctor", folder).code == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loop", "exit"])
def test_a_problem_for_a_new_kernel_may_do_so_too(
    run: CommandLine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    append(folder / "reference.py", {"loop": LOOP, "exit": EXIT}[name])
    monkeypatch.setenv(VARIABLE, "1" if name == "loop" else "60")
    ran = run("new", tmp_path / "made", "--from", folder / "reference.py")
    assert ran.code == 2 and "reference.py" in ran.error and not (tmp_path / "made").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"), [("time.sleep(1000)", "still running after 10 s"), ("os._exit(3)", "exit code 3")]
)
def test_a_study_ends_where_the_reference_does_not_answer(
    run: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    file = folder / "reference.py"
    whole = file.read_text(encoding="utf-8")
    assert "    def forward(self, x):\n" in whole
    text = f"    def forward(self, x):\n        import os, time\n        {text}\n"
    file.write_text(whole.replace("    def forward(self, x):\n", text), encoding="utf-8")
    monkeypatch.setenv(VARIABLE, "10")
    ran = run("tune", folder, "--trials", "1", "--seconds", "5")
    assert "the reference does not answer" in ran.error and expected in ran.error
    if "sleep" not in text:  # doctor would wait as long again
        examined = run("doctor", folder)
        assert examined.code == 1 and expected in examined.out


def test_the_bound_is_a_number_of_seconds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(folder / "model.py", "\n")
    for given in ("nan", "soon", "-1"):
        monkeypatch.setenv(VARIABLE, given)
        with pytest.raises(UserError, match=f"TUNEBENCH_LOAD_SECONDS is '{given}': give a number of seconds"):
            load_model(str(folder))
