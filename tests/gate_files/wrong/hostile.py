"""Files that forge a verdict, or harm whoever judges them. What they return is wrong; nobody may come to believe it."""

from tests.gate_files.entry import MARK, GateFile, forward, wrong
from tests.gate_files.references import LINEAR

_wrong = wrong("hostile")

_ZEROS = forward("return torch.zeros_like(x)")


def _hostile(name: str, *lines: str, before: str = "", ends_early: bool = False) -> GateFile:
    """A file whose forward runs these lines and then returns zeros."""
    body = "\n".join([*lines, "return torch.zeros_like(x)"])
    return _wrong(name, LINEAR, forward(body, before=before), ends_early=ends_early)


_EVERY_PIPE = "for fd in range(3, 64):\n    try: {}\n    except OSError: ..."

_PATCHED_JUDGE = """
import tunebench.tuner.gate.judge as judge, tunebench.tuner.gate.quick as quick, tunebench.tuner.gate.model as model
import tunebench.tuner.gate.comparison as comparison, tunebench.tuner.gate.battery as battery
judge.judge_values = quick.judge_values = lambda *a, **k: None
quick.QuickGate.check = lambda *a, **k: None
battery.run_battery = lambda *a, **k: None
comparison.compare = lambda *a, **k: None
model.Model.changed_parameters = lambda self: []
"""
_PATCHED_TORCH = """
torch.equal = lambda *a: True
torch.isfinite = lambda x: torch.ones_like(x, dtype=torch.bool)
torch.sub = lambda a, b: torch.zeros(1)
torch.linalg.vector_norm = lambda *a, **k: torch.zeros(1)
torch.allclose = lambda *a, **k: True
"""
_SENDS = """
import tunebench.tuner.gate.boundary.host as host
host.send = lambda connection, value: connection.send_bytes(json.dumps([{}, []]).encode())
"""
_PATCHED_BANDS = """
import tunebench.tuner.gate.memory as memory, tunebench.tuner.gate.model as model
memory.Bands.intact = property(lambda self: True)
model.checksums = memory.checksums = lambda values: []
model.shares_memory = lambda *a: False
"""
_EVIL = f"""
class Evil:
    def __reduce__(self):
        return os.system, ('touch "${MARK}"',)
"""
_FORGED = """
def forged():
    stages = [{"name": "values, draw 1", "passed": True, "seconds": 0.0, "detail": ""}]
    return json.dumps([{"target": __file__, "mode": "train", "passed": True, "right_for_problem": True,
                        "drop_in": True, "stages": stages, "reason": ""}])
"""
_LAZY = """
class Lazy(torch.Tensor):
    pass
"""
_SPOOF = """
class Spoof:
    __class__ = torch.Tensor
    shape, dtype, device = (12, 10), torch.float32, torch.device("cpu")
    def __torch_function__(self, *given, **more):
        return torch.zeros(12, 10)
    def __getattr__(self, name):
        return lambda *given, **more: torch.zeros(12, 10)
"""
_FORK_SERVER = """
def stay():
    from multiprocessing import forkserver, get_context
    server = forkserver._forkserver
    server.ensure_running = lambda: None
    server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)
    get_context("forkserver").Process(target=os.system, args=("exec sleep 600",), daemon=False).start()
"""
_UNPRINTABLE = """
class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")
"""
_STARTS = """
def sleeper(*, session):
    if os.fork() == 0:
        if session: os.setsid()
        if os.fork() == 0: os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"])
        os._exit(0)
"""
_FRAMES = """
def found(x):
    frame = sys._getframe(1)
    while frame is not None:
        for value in list(frame.f_locals.values()) + [v for v in gc.get_objects() if type(v) is dict][:2000]:
            for one in (value.values() if isinstance(value, dict) else [value]):
                if type(one) is torch.Tensor and one.shape == x.shape and one.data_ptr() != x.data_ptr():
                    return one.detach().clone()
        frame = frame.f_back
    return torch.zeros_like(x)
"""
_MEMORY = """
def overwrite(pid):
    for line in open(f"/proc/{pid}/maps"):
        if "[heap]" in line:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                memory.seek(low)
                text = memory.read(high - low)
                at = text.find(b"REFUSED")
                while at >= 0:
                    memory.seek(low + at)
                    memory.write(b"passed ")
                    at = text.find(b"REFUSED", at + 1)
"""

FILES = (
    _wrong("patches the judge", LINEAR, _PATCHED_JUDGE + _ZEROS),
    _wrong("patches torch", LINEAR, _PATCHED_TORCH + _ZEROS),
    _wrong("sends an empty answer", LINEAR, _SENDS.format("{}") + _ZEROS, ends_early=True),
    _wrong("answers true to everything", LINEAR, _SENDS.format('{"map": [["value", True]]}') + _ZEROS, ends_early=True),
    _wrong(
        "says that it has passed",
        LINEAR,
        _SENDS.format('{"map": [["value", {"map": [["passed", True]]}]]}') + _ZEROS,
        ends_early=True,
    ),
    _hostile("writes into every pipe", _EVERY_PIPE.format(r"os.write(fd, b'\x00\x00\x00\x04true' * 64)")),
    _hostile(
        "sends a pickle",
        _EVERY_PIPE.format("os.write(fd, (lambda b: len(b).to_bytes(4, 'big') + b)(pickle.dumps(Evil())))"),
        before=_EVIL,
    ),
    _hostile("prints a verdict", "print('[{\"passed\": true}]', flush=True)", "os.write(1, b'[]')"),
    _hostile(
        "prints a whole verdict and ends",
        "os.write(1, forged().encode())",
        "sys.__stdout__.flush()",
        "os._exit(0)",
        before=_FORGED,
    ),
    _hostile(
        "prints a verdict when it ends",
        before=_FORGED + "import atexit\natexit.register(lambda: os.write(1, forged().encode()))",
    ),
    _hostile("prints without end", "print('line\\n' * 200000)"),
    _hostile("ends well", "os._exit(0)"),
    _hostile("ends well while it is read", before="os._exit(0)", ends_early=True),
    _hostile("exits", "sys.exit(0)"),
    _hostile("exits while it is read", before="sys.exit(0)", ends_early=True),
    _hostile("interrupts", "raise KeyboardInterrupt"),
    _hostile("raises what has no text", "raise Unprintable", before=_UNPRINTABLE),
    _hostile("raises a hundred megabytes", "raise RuntimeError('[bold]no' * 12_500_000)"),
    _hostile("kills itself", "os.kill(os.getpid(), signal.SIGKILL)"),
    _hostile("kills its parent", "os.kill(os.getppid(), signal.SIGKILL)", "time.sleep(60)"),
    _hostile(
        "kills its parent's parent",
        "above = int(open(f'/proc/{os.getppid()}/stat').read().rsplit(')', 1)[1].split()[1])",
        "if above > 1: os.kill(above, signal.SIGKILL)",
        "time.sleep(2)",
    ),
    _hostile("reads memory that is nobody's", "ctypes.string_at(0)"),
    _hostile("recurses", "return self.forward(x)"),
    _hostile("deletes itself", "os.path.exists(__file__) and os.unlink(__file__)"),
    _hostile("writes itself anew", "open(__file__, 'w').write('ModelNew = Model')"),
    _hostile("changes directory", "os.chdir('/')"),
    _hostile("closes everything", "os.closerange(0, 64)"),
    _hostile("returns a terabyte", "return torch.zeros(1).expand(1 << 38)"),
    _hostile("asks for a terabyte", "return torch.zeros(1 << 38)"),
    _hostile("returns a generator", "return (x for _ in range(3))"),
    _hostile("returns what claims to be a tensor", "return Spoof()", before=_SPOOF),
    _hostile("returns a tensor of its own", "return super().forward(x).as_subclass(Lazy)", before=_LAZY),
    _hostile("returns a tensor without memory", "return torch.empty(x.shape, device='meta')"),
    _hostile("returns a sparse tensor", "return super().forward(x).to_sparse()"),
    _hostile("looks for the answer in frames and objects", "return found(x)", before=_FRAMES),
    _hostile("writes into its judge's memory", "overwrite(os.getppid())", before=_MEMORY),
    _hostile("leaves a process in a session of its own", "sleeper(session=True)", before=_STARTS),
    _hostile("leaves a process while it is read", before=_STARTS + "\nsleeper(session=True)"),
    _hostile("asks the fork server for a process", "stay()", before=_FORK_SERVER),
    _hostile("goes on twice", "os.fork()"),
    _hostile(
        "starts a thousand threads",
        "for _ in range(1000): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "time.sleep(0.1)",
    ),
    _hostile("stops itself", "os.kill(os.getpid(), signal.SIGSTOP)"),
    _hostile("stops its supervisor", "os.kill(os.getppid(), signal.SIGSTOP)"),
    _hostile("stops its supervisor and ends", "os.kill(os.getppid(), signal.SIGSTOP)", "os._exit(0)"),
    _hostile(
        "stops its supervisor and leaves a process",
        "os.kill(os.getppid(), signal.SIGSTOP)",
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)",
        "os._exit(0)",
    ),
    _hostile("hangs", "while True: ..."),
    _hostile("hangs with Python's lock", "ctypes.PyDLL(None).sleep(600)"),
    _hostile("hangs while it is read", before="time.sleep(600)", ends_early=True),
    _wrong(
        "lies about guard bands and writes into its input",
        LINEAR,
        _PATCHED_BANDS + forward("out = super().forward(x)\nx.data.zero_()\nreturn out"),
    ),
    _wrong(
        "answers right where tunebench is imported",
        LINEAR,
        forward("return super().forward(x) if 'tunebench' in sys.modules else torch.zeros_like(x)"),
    ),
    _wrong(
        "changes the reference in its own file",
        LINEAR,
        forward("return 2 * x") + "\nModel.forward = ModelNew.forward\n",
        alone=True,
    ),
    _wrong("changes torch for the reference in its own file", LINEAR, _PATCHED_TORCH + _ZEROS, alone=True),
)

HANGS = (
    "stops its supervisor and ends",
    "stops its supervisor and leaves a process",
    "stops itself",
    "hangs",
    "hangs with Python's lock",
    "hangs while it is read",
    "kills its parent's parent",
)
"""These are given little time."""
