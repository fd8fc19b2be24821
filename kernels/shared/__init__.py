"""What several kernels share: device headers, and the host's side of them."""

from pathlib import Path

INCLUDE = Path(__file__).parent / "include"
"""Headers with device code that kernels share."""

DTYPES = ("float32", "float64", "float16", "bfloat16")
"""What sources on top of `vector.cuh` and `pack.cuh` serve, by torch's names."""
