"""The kernels that ship with tunebench, and what every kernel builds on."""

from pathlib import Path

INCLUDE = Path(__file__).parent / "include"
"""The folder of the device headers that a kernel's source may include."""
