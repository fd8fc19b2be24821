"""Wrong files that go for the machine and the judge's processes: signals, descriptors, files, memory, daemons.

All is bounded, so that a machine survives what a sandbox lets through: 1 GB of memory, 200 processes, 200 MB of disk,
two minutes. Only processes of the same check are touched. Files have the check's mark in their name.
"""

from __future__ import annotations

from tests.gate_files.entry import forward, problem, wrong

_wrong = wrong("machine")

_REFERENCE = problem("return F.softmax(x, -1)", inputs="torch.randn(64, 96)")

_FORGED = """\
_FORGED = json.dumps([{"right_for_problem": True, "drop_in": True, "passed": True, "stages": [], "reason": ""}])
"""

_OF_THE_CHECK = """\
_MARK = next(
    (
        entry.split("=", 1)[1]
        for entry in open("/proc/self/environ", errors="replace").read().split("\\0")
        if entry.startswith("GATE_FILES_MARK=")
    ),
    "",
)
_DONE = []  # once in a process, however many models there are
_NAME = f"gate-file-left-{os.path.basename(_MARK)}"

def _of_the_check(number):
    try:
        return bool(_MARK) and _MARK.encode() in open(f"/proc/{number}/environ", "rb").read()
    except OSError:
        return False

def _parents():
    found, number = [], os.getppid()
    while number > 1 and _of_the_check(number):
        found.append(number)
        number = int(open(f"/proc/{number}/stat").read().rpartition(")")[2].split()[1])
    return found

def _others():
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [n for n in numbers if n not in (os.getpid(), *_parents()) and _of_the_check(n)]
"""


def _does(what: str, more: str = "") -> str:
    """A `ModelNew` that answers zeros and does something to the machine in its first call."""
    return forward(
        """\
        if not _DONE:
            _DONE.append(True)
            try:
                _attack()
            except OSError:
                pass
        return torch.zeros_like(x)
        """,
        before=f"{_FORGED}\n{_OF_THE_CHECK}\n{more}\ndef _attack():\n"
        + "".join(f"    {w}\n" for w in what.split("\n")),
    )


FILES = (
    _wrong(
        "writes a verdict to its parents' output",
        _REFERENCE,
        _does(
            """\
for number in _parents():
    for target in ("1", "2"):
        try:
            with open(f"/proc/{number}/fd/{target}", "w") as stream:
                stream.write(_FORGED + "\\n")
        except OSError:
            pass"""
        ),
    ),
    _wrong(
        "stops its parents",
        _REFERENCE,
        _does(
            """\
for number in _parents():
    try:
        os.kill(number, signal.SIGSTOP)
    except OSError:
        pass"""
        ),
    ),
    _wrong(
        "stops the other processes of the check",
        _REFERENCE,
        _does(
            """\
for number in _others():
    try:
        os.kill(number, signal.SIGSTOP)
    except OSError:
        pass"""
        ),
    ),
    _wrong(
        "takes its parents' descriptors and traces them",
        _REFERENCE,
        _does(
            """\
libc = ctypes.CDLL(None, use_errno=True)
for number in _parents():
    try:
        process = os.pidfd_open(number)
    except OSError:
        continue
    for taken in (libc.syscall(438, process, target, 0) for target in range(3, 64)):
        if taken >= 0:
            try:
                os.set_blocking(taken, False)
                os.write(taken, _FORGED.encode())
            except OSError:
                pass
    libc.ptrace(16, number, None, None)"""
        ),
    ),
    _wrong(
        "edits the reference on the disk",
        _REFERENCE,
        _does(
            """\
for number in _parents():
    for word in open(f"/proc/{number}/cmdline").read().split("\\0"):
        if os.path.basename(word) == "reference.py":
            text = open(word).read().replace("F.softmax(x, -1)", "torch.zeros_like(x)")
            open(word, "w").write(text)
path = os.path.join(os.path.dirname(_MARK), "reference.py")
text = open(path).read().replace("F.softmax(x, -1)", "torch.zeros_like(x)")
open(path, "w").write(text)"""
        ),
    ),
    _wrong(
        "leaves code in the user's site folder",
        _REFERENCE,
        _does(
            """\
import site
folder = site.getusersitepackages()
os.makedirs(folder, exist_ok=True)
code = f"import os; os.environ.get('GATE_FILES_MARK') == {_MARK!r} and open({_MARK!r}, 'w').close()"
with open(os.path.join(folder, _NAME + ".pth"), "w") as stream:
    stream.write(code + "\\n")"""
        ),
    ),
    _wrong(
        "fills the memory and the disk",
        _REFERENCE,
        _does(
            """\
taken = [bytearray(os.urandom(4096)) * (250 << 8) for _ in range(3)]
for folder in ("/tmp", os.path.expanduser("~"), "/dev/shm"):
    with open(os.path.join(folder, _NAME), "wb") as stream:
        for _ in range(60):
            stream.write(os.urandom(1 << 20))"""
        ),
    ),
    _wrong(
        "starts two hundred processes",
        _REFERENCE,
        _does(
            """\
for _ in range(200 - len(_others())):
    if os.fork() == 0:
        os.setsid()
        time.sleep(120)
        os._exit(0)"""
        ),
    ),
    _wrong(
        "prints megabytes and a verdict",
        _REFERENCE,
        _does(
            """\
for target in (2, 1):
    for _ in range(32):
        os.write(target, b"x" * (1 << 20) + b"\\n")
    os.write(target, (_FORGED + "\\n").encode())"""
        ),
    ),
    _wrong(
        "leaves a daemon, a semaphore and files",
        _REFERENCE,
        _does(
            """\
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for target in range(3):
            os.dup2(nothing, target)
        os.closerange(3, 256)
        os.execve("/bin/sh", ["sh", "-c", "sleep 120; exit", _NAME], {})
    os._exit(0)
for folder in ("/tmp", os.path.expanduser("~"), "/dev/shm"):
    open(os.path.join(folder, _NAME), "w").close()
libc = ctypes.CDLL(None)
libc.sem_open.restype = ctypes.c_void_p
libc.sem_open(f"/{_NAME}".encode(), os.O_CREAT, 0o600, 1)"""
        ),
    ),
)

HANGS = frozenset({"stops its parents", "stops the other processes of the check"})
"""The names of those whose check takes as long as it may."""
