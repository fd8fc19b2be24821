"""tunebench: an autotuning workbench for CUDA kernels in PyTorch."""

__version__ = "0.1.0"
