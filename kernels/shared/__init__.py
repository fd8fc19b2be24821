"""What several kernels share: device headers, and the host's side of them."""

from pathlib import Path

INCLUDE = Path(__file__).parent / "include"
"""Headers with device code that kernels share."""
