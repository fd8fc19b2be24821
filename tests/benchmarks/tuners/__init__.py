"""Tuners side by side: the kernels that all of them tune, and what asks each of them."""
