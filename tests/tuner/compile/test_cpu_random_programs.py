"""The `cpu` compiler: random programs of barriers, warp functions and early exits, against a Python model of them."""

from __future__ import annotations

import math
import random

import pytest
import torch
from cpu_launch import extents, load

from tunebench.tuner.build import Dim3, LoadedModule

# Operations of a program, each a case of the kernel and of the model.
BARRIER, SHUFFLE, DIVERGED_BALLOTS, COUNT, ACTIVE = range(5)
STAYS = 10**6

TEXT = r"""
extern "C" __global__ void k(const int* program, int steps, const int* exits, int* out) {
    __shared__ int cells[1024];
    const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned n = blockDim.x * blockDim.y * blockDim.z;
    int v = t + 1 + blockIdx.x;
    for (int s = 0; s < steps; ++s) {
        if (exits[t] == s) break;
        if (program[s] == 0) {
            __syncthreads();
            cells[t] = v;
            __syncthreads();
            const unsigned other = (t + s * 7 + 1) % n;
            v = v * 3 + (exits[other] > s ? cells[other] : 0);
            __syncthreads();
        } else if (program[s] == 1) {
            const unsigned other = t ^ 1u << s % 5;
            const int value = __shfl_xor_sync(~0u, v, 1 << s % 5);
            if (other < n && exits[other] > s) v += value;
        } else if (program[s] == 2) {
            if (t % 2)
                v += __popc(__ballot_sync(0xaaaaaaaau, v % 3 == 0));
            else
                v += 5 * __popc(__ballot_sync(0x55555555u, v % 2 == 0));
        } else if (program[s] == 3) {
            v += __syncthreads_count(v % 5 == 0);
        } else if (t % 3 == 0) {
            v += __popc(__activemask());
        }
        v %= 10007;
    }
    out[blockIdx.x * n + t] = v;
}
"""


def expected(program: list[int], exits: list[int], block_index: int) -> list[int]:
    """What the kernel leaves in `out` for one block."""
    count = len(exits)
    values = [thread + 1 + block_index for thread in range(count)]
    for step, operation in enumerate(program):
        live = [thread for thread in range(count) if exits[thread] > step]
        old = list(values)
        for t in live:
            warp = [other for other in live if other // 32 == t // 32]
            if operation == BARRIER:
                other = (t + step * 7 + 1) % count
                values[t] = old[t] * 3 + (old[other] if exits[other] > step else 0)
            elif operation == SHUFFLE:
                other = t ^ 1 << step % 5
                values[t] += old[other] if other < count and exits[other] > step else 0
            elif operation == DIVERGED_BALLOTS and t % 2:
                values[t] += sum(old[other] % 3 == 0 for other in warp if other % 2)
            elif operation == DIVERGED_BALLOTS:
                values[t] += 5 * sum(old[other] % 2 == 0 for other in warp if other % 2 == 0)
            elif operation == COUNT:
                values[t] += sum(old[other] % 5 == 0 for other in live)
            elif t % 3 == 0:
                values[t] += sum(other % 3 == 0 for other in warp)
            values[t] %= 10007
    return values


@pytest.fixture(scope="module")
def interpreter() -> LoadedModule:
    return load(TEXT)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(interpreter: LoadedModule, seed: int) -> None:
    draw = random.Random(seed)
    blocks: list[Dim3] = [(1, 1, 1), (32, 1, 1), (33, 1, 1), (64, 1, 1), (5, 7, 3), (16, 16, 1), (1, 1, 64)]
    block = draw.choice([*blocks, (draw.randint(1, 400), 1, 1)])
    steps = draw.randint(0, 25)
    program = [draw.choice((BARRIER, SHUFFLE, DIVERGED_BALLOTS, COUNT, ACTIVE)) for _ in range(steps)]
    leaving = draw.choice((0, 0.05, 0.5))
    exits = [draw.randint(0, steps) if draw.random() < leaving else STAYS for _ in range(math.prod(block))]
    out = torch.full((3, len(exits)), -1, dtype=torch.int32)
    tables = [torch.tensor([*values, 0], dtype=torch.int32) for values in (program, exits)]
    interpreter.launch("k", extents(3), block, [tables[0], steps, tables[1], out])
    assert out.tolist() == [expected(program, exits, index) for index in range(3)]
