"""`@triton.autotune` on the source of `row_norm_triton`: prints a JSON list of what it chose and when.

Run by `python -m tests.benchmarks.tuners`.
"""

from __future__ import annotations

import itertools
import json
import sys
import time

import torch
import triton
from tests.benchmarks.tuners.row_norm_triton.row_norm_triton import row_norm


def main(rows: int, features: int, tunables: dict[str, list[int]]) -> None:
    """Call the kernel once: the decorator times every configuration, and compares no answer."""
    configurations = [
        triton.Config({"block_size": block}, num_warps=warps, num_stages=stages)
        for block, warps, stages in itertools.product(*tunables.values())
    ]
    tuned = triton.autotune(configurations, key=["features"])(row_norm)
    x = torch.rand(rows, features, device="cuda")
    weight = torch.rand(features, device="cuda") + 0.5
    y = torch.empty_like(x)
    tuned[(rows,)](x, weight, y, 1e-5, features)
    torch.cuda.synchronize()
    chosen = tuned.best_config
    configuration = {**chosen.kwargs, "num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
    times = {str(config): taken for config, taken in tuned.configs_timings.items()}
    taken = times[str(chosen)]
    print(json.dumps([{"at": time.time(), "configuration": configuration, "ms": taken[0]}]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
