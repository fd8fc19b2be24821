"""RMSNorm in Triton, a program for each row."""

import triton
import triton.language as tl


@triton.jit
def row_norm(x, weight, y, eps: tl.float32, features: tl.int32, block_size: tl.constexpr):
    """Read each row twice: y = x / sqrt(mean(x²) + eps) · weight."""
    start = tl.program_id(0).to(tl.int64) * features
    squares = tl.zeros((block_size,), tl.float32)
    for first in range(0, features, block_size):
        at = first + tl.arange(0, block_size)
        value = tl.load(x + start + at, mask=at < features, other=0.0).to(tl.float32)
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares, 0) / features + eps)
    for first in range(0, features, block_size):
        at = first + tl.arange(0, block_size)
        value = tl.load(x + start + at, mask=at < features).to(tl.float32) * scale
        tl.store(y + start + at, value * tl.load(weight + at, mask=at < features), mask=at < features)
