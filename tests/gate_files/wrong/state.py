"""Right values from code that changes its process: what is measured or judged after it is not what it seems."""

from tests.gate_files.entry import GateFile, forward, wrong
from tests.gate_files.references import LINEAR

_wrong = wrong("process state")

_RELU = "return super().forward(x)"


def _changes(name: str, *lines: str, before: str = "") -> GateFile:
    return _wrong(name, LINEAR, forward("\n".join([*lines, _RELU]), before=before))


_SLOW_CLOCK = """
_clock, _began = time.perf_counter, time.perf_counter()
time.perf_counter = lambda: _began + (_clock() - _began) / 10
"""
_EVENTS = """
torch.cuda.Event.elapsed_time = lambda self, other: 0.001
torch.cuda.synchronize = lambda *given: None
"""

FILES = (
    _changes("a slower clock", before=_SLOW_CLOCK),
    _changes("a slower clock once it is called", "time.perf_counter = lambda: 0.0"),
    _changes("another monotonic clock", before="_at = time.monotonic()\ntime.monotonic = time.time = lambda: _at"),
    _changes("CUDA events that measure nothing", before=_EVENTS),
    _changes("patches torch.allclose", before="torch.allclose = lambda *given, **more: True"),
    _changes(
        "patches torch.randn",
        before="_randn = torch.randn\ntorch.randn = lambda *sizes, **more: torch.zeros(*sizes, **more)",
    ),
    _changes(
        "patches a product of torch's",
        before="torch.nn.functional.linear = lambda x, weight, bias=None: x @ weight.t() + bias",
    ),
    _changes("patches modules' calls", before="nn.Linear.forward = lambda self, x: x @ self.weight.t() + self.bias"),
    _changes(
        "patches the forward that norms have in common",
        before="""
        _forward = nn.modules.batchnorm._BatchNorm.forward
        nn.modules.batchnorm._BatchNorm.forward = lambda self, x: _forward(self, x)
        """,
    ),
    _changes("patches numpy", before="import numpy\nnumpy.allclose = lambda *given, **more: True"),
    _changes("patches what torch's tests compare with", before="torch.testing.assert_close = lambda *a, **k: None"),
    _changes("patches a builtin", before="import builtins\n_abs = abs\nbuiltins.abs = lambda x: _abs(x)"),
    _changes("patches an attribute of tensors", before="torch.Tensor.T = property(lambda self: self.t())"),
    _changes(
        "an operator of torch's of its own",
        before="""
        LIBRARY = torch.library.Library("aten", "IMPL")
        LIBRARY.impl("gelu", lambda x, approximate="none": x * 0.5 * (1 + torch.erf(x / 2**0.5)), "CPU")
        """,
    ),
    _changes("leaves a callback of the collector", before="gc.callbacks.append(lambda *given: None)"),
    _changes("traces every thread", before="threading.settrace(lambda *given: None)"),
    _changes("sets a timer", "signal.setitimer(signal.ITIMER_REAL, 500)"),
    _changes(
        "leaves hooks for what autograd saves",
        before="torch._C._autograd._push_saved_tensors_default_hooks(lambda t: t, lambda t: t)",
    ),
    _changes("leaves another type for autocast", before="torch.set_autocast_dtype('cpu', torch.float16)"),
    _changes("leaves fewer kernels for attention", before="torch.backends.cuda.enable_flash_sdp(False)"),
    _changes("seeds the generator in every call", "torch.manual_seed(0)"),
    _changes("draws from the generator in every call", "torch.rand(3)"),
    _changes(
        "leaves TF32 on", "torch.backends.cuda.matmul.allow_tf32 = True", "torch.set_float32_matmul_precision('medium')"
    ),
    _changes("leaves another default type", "torch.set_default_dtype(torch.float64)"),
    _changes("leaves gradients off", "out = super().forward(x)", "torch.set_grad_enabled(False)", "return out"),
    _changes(
        "leaves inference mode on", "MODES.append(torch.inference_mode())", "MODES[-1].__enter__()", before="MODES = []"
    ),
    _changes("leaves another number of threads", "torch.set_num_threads(3)"),
    _changes("leaves deterministic algorithms on", "torch.use_deterministic_algorithms(True, warn_only=True)"),
    _changes("leaves denormals flushed", "torch.set_flush_denormal(True)"),
    _changes(
        "leaves a hook on all modules",
        "if not HOOKS: HOOKS.append(nn.modules.module.register_module_forward_hook(lambda *given: None))",
        before="HOOKS = []",
    ),
    _changes("turns oneDNN off", before="torch._C._set_mkldnn_enabled(False)"),
    _changes("leaves a thread behind", "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"),
)
