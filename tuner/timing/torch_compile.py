"""The reference under torch.compile, as a baseline to beat."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.users_code import described

_numbers = itertools.count()
_PATIENCE_SECONDS = 0.5
"""Inductor's processes have so long to end by themselves."""


class CompiledReferenceError(TunebenchError):
    """torch.compile could not compile or run the reference; the message is its first line."""


def compile_reference(model: nn.Module, inputs: Sequence[Any], mode: str = "max-autotune") -> Callable[..., Any]:
    """Compile the model by `torch.compile` for these inputs; max-autotune takes tens of seconds.

    `end_compilers` belongs before what is timed.

    Args:
        mode: of `torch.compile`: `default` or `max-autotune`; a model with an attribute `compile_mode` has its own.

    Raises:
        CompiledReferenceError: it does not compile, or its first calls fail.
    """
    bars = torch.hub.tqdm  # type: ignore[attr-defined]
    if hasattr(bars, "set_lock"):  # by itself it takes a semaphore, which a worker that is killed leaves behind
        bars.set_lock(threading.RLock())
    use_torchs_assembler()
    mode = getattr(model, "compile_mode", mode)
    compiled: Callable[..., Any] = torch.compile(apart(model), mode=mode, dynamic=False)
    try:
        with torch.no_grad(), without_reports():
            for _ in range(3):  # the first compiles, the next ones record its CUDA graph
                compiled(*inputs)
    except Exception as error:  # another project's compiler raises what it likes
        raise CompiledReferenceError(f"torch.compile: {described(error)}") from error
    return compiled


def apart(model: Callable[..., Any]) -> nn.Module:
    """Return a module that calls the model, whose programs are its own and are let go of with it.

    Those of the model itself belong to the user's program. PyTorch counts the programs of each function, and beyond
    eight it runs the function as it stands.
    """

    def calling(self: Any, *inputs: Any) -> Any:
        return self.model(*inputs)

    # PyTorch keeps programs by this object, and by its name which of its sizes have varied.
    code = calling.__code__.replace(co_name=f"calling_{next(_numbers)}")
    # In the model's globals: PyTorch would import those of another function, and not every file of a model is a module.
    forward = types.FunctionType(code, getattr(getattr(model, "forward", model), "__globals__", {}))
    made: Any = type("Apart", (nn.Module,), {"forward": forward})()
    made.model = model
    weakref.finalize(made, torch._dynamo.reset_code, code).atexit = False  # type: ignore[attr-defined]
    return made  # type: ignore[no-any-return]


def use_torchs_assembler() -> None:
    """Have Triton use PyTorch's ptxas in this process, as Inductor's processes do.

    By itself PyTorch 2.11 uses Triton's own here: max-autotune then finds nothing that they have built in Triton's
    cache, builds all choices again one after another, and measures code that it will not run.
    """
    with contextlib.suppress(ImportError):  # it is none of PyTorch's public functions
        from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

        _set_triton_ptxas_path()


@contextlib.contextmanager
def without_reports() -> Iterator[None]:
    """Keep off the terminal what Inductor tells of the code that it has tried: tables, and what does not build."""
    from torch._inductor import config, select_algorithm

    logger = logging.getLogger(select_algorithm.__name__)
    printed, level = select_algorithm.PRINT_AUTOTUNE, logger.level
    select_algorithm.PRINT_AUTOTUNE = False
    logger.setLevel(logging.CRITICAL)
    try:
        with config.patch(max_autotune_report_choices_stats=False):
            yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = printed
        logger.setLevel(level)


def end_compilers() -> None:
    """End Inductor's processes, as many as there are cores: what they still do would disturb the timing.

    The one that starts the others may still be importing torch, for some seconds, and hears nothing meanwhile.
    """
    with contextlib.suppress(ImportError):  # it is none of PyTorch's public functions
        from torch._inductor.async_compile import _pool_set, shutdown_compile_workers

        starting = [pool.process for pool in _pool_set if hasattr(pool, "process")]
        ending = threading.Thread(target=shutdown_compile_workers)
        ending.start()
        ending.join(_PATIENCE_SECONDS)
        if ending.is_alive():
            for process in starting:
                process.kill()
        ending.join()
