"""Whatever is in a study file, nothing runs or is compiled that its kernel does not declare."""

from __future__ import annotations

import pickle
from pathlib import Path

import hostile_count
import pytest
from command_line import CommandLine

from tunebench.tuner.compile.cpu.compiler import CpuCompiler

CODE = '256; } extern \\"C\\" int system(const char*); static int x = system(\\"touch executed\\"); {'

FILES = {
    "a fraction": "[tunables]\nblock_size = [256.5]",
    "a number outside the space": "[tunables]\nblock_size = [7]",
    "a huge number": "[tunables]\nblock_size = [99999999999999999999999999]",
    "text with code": f'[tunables]\nblock_size = ["{CODE}"]',
    "a hint with code": f'[tunables]\nload_hint = ["{CODE}"]',
    "a directive": '[tunables]\nload_hint = ["\\n#include \\"/etc/passwd\\"\\n"]',
    "a name with code": '[tunables]\n"x = 0; int y" = [1]',
    "no values": "[tunables]\nblock_size = []",
    "a list of lists": "[tunables]\nblock_size = [[256]]",
    "a size in text": "[sizes]\nM = \"__import__('os').system('touch executed')\"",
    "a size that there is not": '[sizes]\n"__builtins__" = 1',
    "a size below zero": "[sizes]\nM = -1\nN = 8",
    "a size that is no number": "[sizes]\nM = nan\nN = 8",
    "a sampler with SQL": 'sampler = "gp\'; DROP TABLE tunebench_trials; --"',
    "a compiler of one's own": 'compiler = "/bin/sh"',
    "a device with a path": 'device = "../../dev/null"',
    "a mode with code": 'modes = ["eval(1)"]',
    "a negative seed": "seed = -1",
    "a huge seed": "seed = 99999999999999999999999999999",
    "no trials": "trials = 0",
    "infinite seconds": "seconds = -inf",
    "a key of its own": 'command = "touch executed"',
    "what a terminal obeys": '"\\u001b[2J" = 1',
    "no TOML": "kernel = = =",
    "deep nesting": "x = " + "[" * 5_000,
}
KERNELS = ("'; DROP TABLE tunebench_trials; --", "../../../../etc", "/etc/passwd", "os", "a\\u0000b", "k" * 100_000)


@pytest.fixture
def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(CpuCompiler, "compile", fail)


def refused(run: CommandLine, file: Path) -> None:
    hostile_count.tried["study files"] += 1
    before = file.read_bytes()
    message = run("tune", str(file)).error
    assert "\x1b" not in message and len(message) < 1_000
    assert file.read_bytes() == before
    assert sorted(path.name for path in file.parent.iterdir() if path.name != "own") == [file.name]


@pytest.mark.usefixtures("nothing_is_built")
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_value_is_refused(run: CommandLine, tmp_path: Path, name: str) -> None:
    file = tmp_path / "study.toml"
    rest = FILES[name]
    file.write_text(
        'kernel = "scalar_mul"\n' + ("" if "device" in rest else 'device = "cpu"\n') + rest, encoding="utf-8"
    )
    refused(run, file)


@pytest.mark.usefixtures("nothing_is_built")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel[:12])
def test_a_kernel_that_is_none_is_refused(run: CommandLine, tmp_path: Path, kernel: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(f'kernel = "{kernel}"\n', encoding="utf-8")
    refused(run, file)


@pytest.mark.usefixtures("nothing_is_built")
def test_a_pickle_is_no_study_file(run: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_bytes(pickle.dumps({"kernel": "scalar_mul"}))
    refused(run, file)
