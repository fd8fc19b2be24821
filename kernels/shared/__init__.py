"""Code that several kernels share: device headers, and the host's side of them."""

DTYPES = ("float32", "float64", "float16", "bfloat16")
"""The dtypes that sources on top of `vector.cuh` and `pack.cuh` support, by torch's names."""

REPAIR_THREADS = 256
"""Threads of a block that computes again what half precision could not hold."""
