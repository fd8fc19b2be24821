"""Kernel Tuner on `scalar_mul.cu`: prints how many configurations it timed, the seconds of each and the best time.

Run by `python -m tests.benchmarks.seconds`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import kernel_tuner
import numpy

_SOURCE = Path(__file__).parent / "scalar_mul" / "scalar_mul.cu"


def main(elements: int, tunables: dict[str, list[int]]) -> None:
    """Time every configuration as Kernel Tuner does, with its answer compared to NumPy's."""
    x = numpy.random.default_rng(0).standard_normal(elements, dtype=numpy.float32)
    factor = numpy.float32(3.14)
    began = time.perf_counter()
    results, _ = kernel_tuner.tune_kernel(
        "scalar_mul",
        _SOURCE.read_text(encoding="utf-8"),
        elements,
        [x, numpy.zeros_like(x), factor, numpy.int64(elements)],
        tunables,
        grid_div_x=["block_size", "items_per_thread", "vector_width"],
        block_size_names=["block_size"],
        answer=[None, x * factor, None, None],
        atol=1e-5,
        lang="NVCUDA",
        quiet=True,
    )
    timed = [one["time"] for one in results if isinstance(one["time"], float)]
    seconds = (time.perf_counter() - began) / len(timed)
    print(json.dumps({"timed": len(timed), "seconds": seconds, "best_ms": min(timed)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
