"""What a file changes for all code of its process is seen, whether it is still so at the end or not."""

import gc
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from tunebench.tuner.gate.process_state import Watch, draws
from tunebench.tuner.users_code import described


@contextmanager
def put_back(holder: object, name: str, value: object) -> Iterator[None]:
    """An attribute of another value; what stood in a parent class stands there again."""
    before, own = getattr(holder, name), name in vars(holder)
    setattr(holder, name, value)
    try:
        yield
    finally:
        if own:
            setattr(holder, name, before)
        else:
            delattr(holder, name)


@contextmanager
def undone(do: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
    do()
    try:
        yield
    finally:
        undo()


@contextmanager
def _another_gelu() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    library.impl("gelu", lambda x, **_: x, "CPU")
    try:
        yield
    finally:
        library._destroy()


CHANGES = {
    "torch.get_default_dtype()": lambda: undone(
        lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)
    ),
    "torch.get_float32_matmul_precision()": lambda: undone(
        lambda: torch.set_float32_matmul_precision("high"), lambda: torch.set_float32_matmul_precision("highest")
    ),
    "torch.backends.cudnn.benchmark": lambda: undone(
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: setattr(torch.backends.cudnn, "benchmark", False),
    ),
    "torch.set_flush_denormal": lambda: undone(
        lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)
    ),
    "torch.is_grad_enabled()": lambda: undone(
        lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)
    ),
    "time.perf_counter": lambda: put_back(time, "perf_counter", lambda: 0.0),
    "torch.equal": lambda: put_back(torch, "equal", lambda *_: True),
    "torch.Tensor.copy_": lambda: put_back(torch.Tensor, "copy_", lambda self, *_: self),
    "torch.cuda.Event.elapsed_time": lambda: put_back(torch.cuda.Event, "elapsed_time", lambda *_: 1e-3),
    "torch.nn.Linear.forward": lambda: put_back(nn.Linear, "forward", lambda _, x: x),
    "torch.nn.modules.batchnorm._BatchNorm.forward": lambda: put_back(
        nn.modules.batchnorm._BatchNorm, "forward", lambda _, x: x
    ),
    "torch.Tensor.T": lambda: put_back(torch.Tensor, "T", property(lambda self: self)),
    "numpy.allclose": lambda: put_back(numpy, "allclose", lambda *_: True),
    "gc.callbacks": lambda: undone(
        lambda: gc.callbacks.append(lambda *_: None), lambda: gc.callbacks.__delitem__(slice(None))
    ),
    "threading.gettrace()": lambda: undone(
        lambda: threading.settrace(lambda *_: None),
        lambda: threading.settrace(None),  # type: ignore[arg-type]
    ),
    "the operator aten/gelu/CPU": _another_gelu,
    "hooks of all modules": lambda: nn.modules.module.register_module_forward_hook(lambda *_: None),
    f"the handler of signal {int(signal.SIGUSR2)}": lambda: undone(
        lambda: signal.signal(signal.SIGUSR2, lambda *_: None), lambda: signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_one_line_that_names_it(name: str) -> None:
    watch = Watch()
    watch.start()
    with CHANGES[name]():
        lines = watch.changes("in a call")
    assert any(line.startswith(f"{name} is ") for line in lines), lines
    assert all("\n" not in line for line in lines)


def test_a_setting_that_was_put_back_was_changed_all_the_same() -> None:
    watch = Watch()
    watch.start()
    assert watch.changes("at once") == []
    torch.set_default_dtype(torch.float64)
    watch.look("in a call")
    torch.set_default_dtype(torch.float32)
    (line,) = watch.changes("at the end")
    assert line == "torch.get_default_dtype() is torch.float64 and was torch.float32 (in a call)"


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    watch.start()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert any("os.getcwd() is unreadable (FileNotFoundError)" in line for line in watch.changes("in a call"))


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), random.random, numpy.random.rand])
def test_a_draw_is_seen(draw: Callable[[], object]) -> None:
    before = draws()
    assert draws() == before
    draw()
    assert draws() != before


def test_an_exception_that_tells_no_text_has_its_type() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert described(SilentError()) == "SilentError"
