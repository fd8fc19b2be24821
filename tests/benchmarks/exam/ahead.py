"""What torch.compile builds for the exam's references, built ahead and many at once.

Only Triton's binaries are kept: what max-autotune measures here, in company, is thrown away, and it measures again on a
quiet GPU when the problem is timed. Building takes most of its time.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.queues import Queue
from pathlib import Path

import torch
from tests.benchmarks.exam.problems import ExamProblem

_BUILDERS = "4"
"""Processes that each compilation builds with."""


def build_ahead(wanted: Sequence[ExamProblem], gpus: Sequence[str], at_once: int, triton: Path) -> list[str]:
    """Compile every reference; a line for each that did not compile.

    Args:
        gpus: as CUDA_VISIBLE_DEVICES names them.
        at_once: compilations on each of them.
        triton: the folder for Triton's binaries.
    """
    spawn = multiprocessing.get_context("spawn")
    places: Queue[str] = spawn.Queue()
    for visible in list(gpus) * at_once:
        places.put(visible)
    with ProcessPoolExecutor(len(gpus) * at_once, spawn, _begin, (places, str(triton))) as pool:
        return [told for told in pool.map(_build, wanted) if told]


def _begin(places: Queue[str], triton: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = places.get()
    os.environ["TRITON_CACHE_DIR"] = triton
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="exam-ahead-")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = _BUILDERS


def _build(problem: ExamProblem) -> str:
    # A process that asked the driver for a GPU before `_begin` would have kept to another one.
    from tests.benchmarks.exam.measure import mode_of

    from tunebench.kernels.runtime.registry import load_model
    from tunebench.tuner.kernel import prepare_model
    from tunebench.tuner.timing.torch_compile import CompiledReferenceError, compile_reference

    try:
        kernel = load_model(str(problem.path)).kernel
        reference = kernel.reference(problem.sizes, None)
        device = torch.device("cuda")
        model = prepare_model(reference, mode_of(kernel), device)
        with device:
            inputs = reference.get_inputs()
        compile_reference(model, inputs)
    except (CompiledReferenceError, RuntimeError) as error:
        return f"{problem.name}: {str(error).splitlines()[0]}"
    return ""
