"""What is made of compute-sanitizer's reports and exit codes; `tests/gpu` has the tool itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch
from tests.gate_files.references import SCALE

from tunebench.tuner.gate.boundary.box import Walls
from tunebench.tuner.gate.boundary.inspection import inspect_call
from tunebench.tuner.gate.boundary.spec import Files
from tunebench.tuner.gate.launch_again import NO_ROOM
from tunebench.tuner.gate.launches import Launch
from tunebench.tuner.gate.sanitizer import LaunchInspection, findings_in, is_of_a_library
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.kernel import Mode

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scale(const float *, float *, long, long)+0x110 in mine.cu:9
=========     by thread (8,0,0) in block (1,0,0)
=========     Access to 0x7f4a2be00420 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f4a2be00000 of size 1056 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: run [0x1b2] in mine.so
=========
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void at::native::reduce_kernel<512>()+0x1e0
=========     and Read access at void at::native::reduce_kernel<512>()+0x300 [8 hazards]
=========
========= Error: Race reported between Write access at row_sums(const float *, float *, long)+0x1e0
=========     and Read access at row_sums(const float *, float *, long)+0x300 [8960 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""
TOOL = """\
#!/bin/bash
while [ "$1" != -c ]; do
    [ "$1" = --tool ] && tool=$2
    [ "$1" = --log-file ] && report=$2
    python=$1
    shift
done
told=$4
returns() {{ printf returned > $told; }}
ends() {{ printf "========= COMPUTE-SANITIZER\\n$2========= ERROR SUMMARY: of errors\\n" > $report; exit $1; }}
{}
"""
"""In the place of the tool: a script that gets its arguments, and ends as a test has it end."""


def test_a_report_names_error_kernel_and_line() -> None:
    (written,) = findings_in(MEMCHECK)
    assert written == (
        "Invalid __global__ write of size 4 bytes at scale(const float *, float *, long, long)+0x110 in mine.cu:9, "
        "by thread (8,0,0) in block (1,0,0), Access to 0x7f4a2be00420 is out of bounds "
        "and is 1 bytes after the nearest allocation at 0x7f4a2be00000 of size 1056 bytes"
    )
    library, own = findings_in(RACECHECK)
    assert is_of_a_library(library) and not is_of_a_library(own) and not is_of_a_library(written)
    assert own.startswith("Error: Race reported between Write access at row_sums(") and "8960 hazards" in own


def inspected(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    tool: str,
    body: str = "return x * 2.5",
    walls: Walls | None = Walls.NAMESPACES,
) -> str:
    """What is said of a file whose `ModelNew` does this, under a tool that is this script."""
    program = folder / "compute-sanitizer"
    program.write_text(TOOL.format(tool), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    text = f"{SCALE}\nclass ModelNew(Model):\n    def forward(self, x):\n        {body}\n"
    files = Files(
        (folder / "reference.py", SCALE), (folder / "mine.py", text), {}, None, torch.device("cpu"), walls=walls
    )
    try:
        return "; ".join(inspect_call(files.contender, {"batch": 2, "features": 3}, Mode.TRAIN))
    except StageRefused as refusal:
        return f"refused: {refusal}"


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("returns; ends 0", "2 cases"),
        (f"returns; ends 86 '{MEMCHECK}'", "refused: memcheck: Invalid __global__ write of size 4 bytes at scale("),
        ("returns; ends 86", "refused: memcheck: it found an error, and its report"),
        ("ends 0", "not asked: memcheck: the process ended with 0 before the call had"),
        ("kill -9 $$", "not asked: memcheck: the process ended with -9 before the call had"),
        (
            'echo "========= Device not supported" > $report; exit 255',
            "not asked: memcheck: the process ended with 255 before the call had: Device not supported",
        ),
        (f"ends 1 '{MEMCHECK}'", "refused: memcheck: Invalid __global__ write of size 4 bytes at scale("),
        ("printf 'ValueError: no' > $told; ends 0", "not asked: memcheck: the call fails: ValueError: no"),
        ("[ $tool = racecheck ] && printf no > $told || returns; ends 0", "1 cases; racecheck: the call fails: no"),
    ],
    ids=("sound", "found", "no report", "early", "killed", "no device", "found and ended", "raises", "raises in one"),
)
def test_what_counts_is_how_the_tool_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str, said: str
) -> None:
    assert inspected(monkeypatch, tmp_path, tool).startswith(said)


def test_what_racecheck_says_of_library_kernels_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library, _, own = RACECHECK.partition("=========\n")
    race = "returns; [ $tool = racecheck ] && ends 86 '{}' || ends 0"
    assert inspected(monkeypatch, tmp_path, race.format(library)) == "2 cases"
    said = inspected(monkeypatch, tmp_path, race.format(own))
    assert said.startswith("refused: racecheck: Error: Race reported between Write access at row_sums(")


@pytest.mark.parametrize(
    ("code", "said"),
    [(NO_ROOM, ["not asked: the device has no memory left to make the launches again"]), (0, ["2 cases"])],
)
def test_launches_that_the_device_has_no_memory_for_refuse_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, said: list[str]
) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    launch = Launch(b"", "weigh", (1, 1, 1), (32, 1, 1), 0, ((b"1234", 4),), ((0, 0),))
    assert LaunchInspection(0, (launch,))() == said


@pytest.mark.slow
@pytest.mark.parametrize("walls", [None, *Walls])
def test_the_call_itself_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, walls: Walls | None) -> None:
    runs = '"$python" "$@"; ends $?'
    said = inspected(monkeypatch, tmp_path, runs, "raise ValueError(f'{x.shape[0]} rows')", walls)
    assert said.startswith("not asked: memcheck: the call fails: ValueError: 2 rows")
