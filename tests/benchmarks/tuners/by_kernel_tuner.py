"""Kernel Tuner on `row_norm.cu`: prints a JSON list of what it timed and when.

Run by `python -m tests.benchmarks.tuners`.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path

import kernel_tuner
import numpy

_TYPES = "typedef float scalar_t;\ntypedef float accumulator_t;\n"


def main(rows: int, features: int, tunables: dict[str, list[int]]) -> None:
    """Time every configuration as Kernel Tuner does, with its answer compared to NumPy's."""
    generator = numpy.random.default_rng(0)
    x = generator.random((rows, features), dtype=numpy.float32)
    weight = generator.random(features, dtype=numpy.float32) + numpy.float32(0.5)
    eps = numpy.float32(1e-5)
    answer = x / numpy.sqrt((x * x).mean(1, keepdims=True) + eps) * weight
    source = _TYPES + (Path(__file__).parent / "row_norm" / "row_norm.cu").read_text(encoding="utf-8")
    results, _ = kernel_tuner.tune_kernel(
        "row_norm",
        source,
        rows,
        [x, weight, numpy.zeros_like(x), eps, numpy.int32(features)],
        tunables,
        grid_div_x=[],
        block_size_names=["block_size"],
        answer=[None, None, answer, None, None],
        atol=1e-4,
        lang="CUPY",
        quiet=True,
    )
    trials = [
        {
            "at": datetime.fromisoformat(one["timestamp"]).timestamp(),
            "configuration": {name: one[name] for name in tunables},
            "ms": one["time"],
        }
        for one in results
        if isinstance(one["time"], float)
    ]
    print(json.dumps(trials))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
