"""What a submission starts and prints while it is judged; `tests.benchmarks.gate_files` has many more of its kind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import CommandLine
from tests.gate_files.entry import forward
from tests.gate_files.references import LINEAR


def submission(*lines: str) -> str:
    """A ModelNew whose forward runs these lines and then returns zeros."""
    return LINEAR + forward("\n".join([*lines, "return torch.zeros_like(x)"]))


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


@pytest.mark.slow
def test_what_a_file_starts_is_ended_with_it(run: CommandLine, tmp_path: Path) -> None:
    mark = f"left-by-{os.getpid()}-{time.monotonic_ns()}"
    sleeper = f"os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}])"
    lines = ("if os.fork() == 0:", "    os.setsid()", f"    if os.fork() == 0: {sleeper}", "    os._exit(0)")
    path = tmp_path / "submission.py"
    path.write_text(submission(*lines, "time.sleep(0.2)"), encoding="utf-8")
    assert run("check", path, "--device", "cpu", "--json").code == 1
    assert left_running(mark) == []


@pytest.mark.slow
@pytest.mark.parametrize("box", ["auto", "off"])
@pytest.mark.parametrize(("question", "end"), [("check", signal.SIGTERM), ("compare", signal.SIGKILL)])
def test_a_command_that_is_killed_takes_the_file_along(
    tmp_path: Path, question: str, end: signal.Signals, box: str
) -> None:
    """Also where the file holds Python's lock, so that no thread of its process comes to run."""
    mark = f"left-by-{os.getpid()}-{end}-{box}"
    lines = ("os.write(2, b'started\\n')", "ctypes.PyDLL(None).sleep(600)")
    path = tmp_path / "submission.py"
    path.write_text(submission(*lines), encoding="utf-8")
    against = ["reference"] if question == "compare" else []
    command = [sys.executable, "-m", "tunebench", question, str(path), *against, "--device", "cpu", "--box", box]
    check = subprocess.Popen(
        command, env={**os.environ, "MARK": mark}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert check.stderr is not None
    assert "started\n" in iter(check.stderr.readline, "")
    assert left_running(mark)
    check.send_signal(end)
    check.wait()
    for _ in range(600):
        if not left_running(mark):
            return
        time.sleep(0.1)
    raise AssertionError(f"still running: {left_running(mark)}")


@pytest.mark.slow
def test_what_a_file_prints_is_no_part_of_the_json(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "submission.py"
    text = forward("print('{}')\nreturn super().forward(x)", before="print('hello from the file')")
    path.write_text(LINEAR + text, encoding="utf-8")
    done = run("check", path, "--device", "cpu", "--json")
    (report,) = json.loads(done.out)
    assert done.code == 0 and report["passed"], report["reason"]


def refused_at_once(folder: Path, line: str) -> list[str]:
    """Write a file that this line ends, and its reference; return the arguments of its check."""
    path, reference = folder / "submission.py", folder / "reference.py"
    path.write_text(f"{LINEAR}\nclass ModelNew(Model): ...\n{line}\n", encoding="utf-8")
    reference.write_text(LINEAR, encoding="utf-8")
    return ["check", str(path), "--reference", str(reference), "--device", "cpu"]


@pytest.mark.parametrize(("box", "said"), [("auto", "boxed by namespaces"), ("off", "not boxed (--box off)")])
def test_a_verdict_says_how_the_file_was_boxed(run: CommandLine, tmp_path: Path, box: str, said: str) -> None:
    done = run(*refused_at_once(tmp_path, "raise ValueError"), "--box", box)
    assert done.code == 1 and f"train: {said}\n" in done.out


NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
"""A script for a user namespace of its own, in which nobody may then make another."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_where_namespaces_are_not_granted_landlock_makes_the_box(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tunebench", *refused_at_once(tmp_path, "open('/tmp/left', 'w')")]
    done = subprocess.run(
        ["unshare", "-r", "sh", "-c", NO_NAMESPACES, "sh", *command, "--box", "require", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    (report,) = json.loads(done.stdout)
    assert report["box"] == "boxed by Landlock (namespaces: No space left on device)"
    assert "Permission denied: '/tmp/left'" in report["reason"]
