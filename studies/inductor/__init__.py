"""Kernels of tunebench in Inductor's programs: the regions of a graph, the backend that calls them, their tuning."""
