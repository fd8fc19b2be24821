"""Files that forge a verdict, or harm whoever judges them: each is refused with one line, and nothing of it is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import CommandLine

HEAD = """
import ctypes, json, os, pickle, signal, sys, time
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features, offset):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.offset = offset

    def forward(self, x):
        return torch.relu(self.linear(x)) + self.offset

batch = 6
features = 5
offset = 0.5

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return [features, offset]
"""

ZEROS = """
class ModelNew(Model):
    def forward(self, x):
        return torch.zeros_like(x)
"""


def forward(*lines: str) -> str:
    """A ModelNew whose forward runs these lines and then returns zeros."""
    body = "".join(f"        {line}\n" for line in lines)
    return f"class ModelNew(Model):\n    def forward(self, x):\n{body}        return torch.zeros_like(x)\n"


OVERWRITE_PIPES = (
    "for fd in range(3, 64):",
    "    try: os.write(fd, b'\\x00\\x00\\x00\\x04true' * 64)",
    "    except OSError: ...",
)
PICKLES = (
    "class Evil:",
    "    def __reduce__(self): return os.system, ('touch ' + MARK,)",
    "for fd in range(3, 64):",
    "    try: os.write(fd, (lambda b: len(b).to_bytes(4, 'big') + b)(pickle.dumps(Evil())))",
    "    except OSError: ...",
)
PATCHED_JUDGE = """
import tunebench.tuner.gate.judge as judge, tunebench.tuner.gate.quick as quick, tunebench.tuner.gate.party as party
import tunebench.tuner.gate.comparison as comparison, tunebench.tuner.gate.battery as battery
judge.judge_values = quick.judge_values = lambda *a, **k: None
quick.QuickGate.check = lambda *a, **k: None
battery.run_battery = lambda *a, **k: None
comparison.compare = lambda *a, **k: None
party.LocalParty.changed_parameters = lambda self: []
"""
PATCHED_TORCH = """
torch.equal = lambda *a: True
torch.isfinite = lambda x: torch.ones_like(x, dtype=torch.bool)
torch.sub = lambda a, b: torch.zeros(1)
torch.linalg.vector_norm = lambda *a, **k: torch.zeros(1)
"""
CHANGED_ANSWERS = """
import tunebench.tuner.gate.boundary.inside as inside
inside.send = lambda connection, value: connection.send_bytes(json.dumps([{}, []]).encode())
"""
HANDS_OUT_TRUE = CHANGED_ANSWERS.replace("{}", '{"map": [["value", True]]}')
SAYS_PASSED = CHANGED_ANSWERS.replace("{}", '{"map": [["value", {"map": [["passed", True]]}]]}')
LAZY = """
class Lazy(torch.Tensor):
    pass

class ModelNew(Model):
    def forward(self, x):
        return super().forward(x).as_subclass(Lazy)
"""

RIGHT = forward("return super().forward(x)")
PATCHED_CLOCK = "clock = time.perf_counter\ntime.perf_counter = lambda: clock() / 10\n"

HOSTILE = {
    "patches the judge": (PATCHED_JUDGE + ZEROS, "values, seed 1"),
    "patches torch": (PATCHED_TORCH + ZEROS, "values, seed 1"),
    "writes into every pipe": (forward(*OVERWRITE_PIPES), "process"),
    "sends a pickle": (forward(*PICKLES), "process"),
    "sends an empty answer": (CHANGED_ANSWERS + ZEROS, "."),
    "answers true to everything": (HANDS_OUT_TRUE + ZEROS, "."),
    "says that it has passed": (SAYS_PASSED + ZEROS, "."),
    "prints a verdict": (forward("print('[{\"passed\": true}]', flush=True)", "os.write(1, b'[]')"), "values, seed 1"),
    "ends well": (forward("os._exit(0)"), "process"),
    "exits": (forward("sys.exit(0)"), "SystemExit"),
    "kills itself": (forward("os.kill(os.getpid(), signal.SIGKILL)"), "process"),
    "kills its parent": (forward("os.kill(os.getppid(), signal.SIGKILL)", "time.sleep(60)"), "process"),
    "reads memory that is nobody's": (forward("ctypes.string_at(0)"), "process"),
    "recurses": (forward("return self.forward(x)"), "RecursionError"),
    "deletes itself": (forward("os.path.exists(__file__) and os.unlink(__file__)"), "values, seed 1"),
    "changes directory": (forward("os.chdir('/')"), "values, seed 1"),
    "closes everything": (forward("os.closerange(0, 64)"), "process"),
    "returns a terabyte": (forward("return torch.zeros(1).expand(1 << 38)"), "larger than"),
    "returns a generator": (forward("return (x for _ in range(3))"), "structure"),
    "returns a tensor of its own": (LAZY, "structure"),
    "lowers everybody's precision": ("torch.set_float32_matmul_precision('high')\n" + RIGHT, "state"),
    "patches the clock": (PATCHED_CLOCK + RIGHT, "state"),
    "draws random numbers": (forward("torch.rand(1)", "return super().forward(x)"), "state"),
}


def left_running(mark: str) -> list[int]:
    """Processes whose environment or command line has the mark; zombies have none."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark.encode() in (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gets_a_refusal(run: CommandLine, tmp_path: Path, name: str) -> None:
    text, stage = HOSTILE[name]
    path, mark = tmp_path / "submission.py", tmp_path / "mark"
    path.write_text(HEAD + f"\nMARK = {str(mark)!r}\n" + text, encoding="utf-8")
    here = Path.cwd()
    done = run("check", path, "--device", "cpu", "--json")
    assert Path.cwd() == here and not mark.exists()
    assert "Traceback" not in done.err, done.err
    if done.code == 2:  # the file's own code ended while it was made: there is nothing to judge
        assert done.err.count("\n") == 1
        return
    assert done.code == 1
    (report,) = done.json
    assert not report["passed"]
    refused = [one for one in report["stages"] if not one["passed"]]
    assert any(stage in one["name"] or stage in one["detail"] for one in refused), report["reason"]


def test_what_a_file_starts_is_ended_with_it(run: CommandLine, tmp_path: Path) -> None:
    mark = f"left-by-{os.getpid()}-{time.monotonic_ns()}"
    sleeper = f"os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}])"
    lines = ("if os.fork() == 0:", "    os.setsid()", f"    if os.fork() == 0: {sleeper}", "    os._exit(0)")
    path = tmp_path / "submission.py"
    path.write_text(HEAD + forward(*lines, "time.sleep(0.2)"), encoding="utf-8")
    assert run("check", path, "--device", "cpu", "--json").code == 1
    assert left_running(mark) == []


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_check_that_is_killed_takes_the_file_along(tmp_path: Path, end: signal.Signals) -> None:
    """Also where the file holds Python's lock, so that no thread of its process comes to run."""
    mark, started = f"left-by-{os.getpid()}-{end}", tmp_path / "started"
    lines = (f"open({str(started)!r}, 'w').close()", "ctypes.PyDLL(None).sleep(600)")
    path = tmp_path / "submission.py"
    path.write_text(HEAD + forward(*lines), encoding="utf-8")
    command = [sys.executable, "-m", "tunebench", "check", str(path), "--device", "cpu"]
    check = subprocess.Popen(command, env={**os.environ, "MARK": mark}, stdout=subprocess.DEVNULL)
    while not started.exists():
        assert check.poll() is None
        time.sleep(0.05)
    assert left_running(mark)
    check.send_signal(end)
    check.wait()
    for _ in range(600):
        if not left_running(mark):
            return
        time.sleep(0.1)
    raise AssertionError(f"still running: {left_running(mark)}")


def test_what_a_file_prints_is_no_part_of_the_json(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "submission.py"
    text = forward("print('{}')").replace("torch.zeros_like(x)", "super().forward(x)")
    path.write_text(HEAD + "print('hello from the file')\n" + text, encoding="utf-8")
    done = run("check", path, "--device", "cpu", "--json")
    (report,) = json.loads(done.out)
    assert done.code == 0 and report["passed"], report["reason"]
