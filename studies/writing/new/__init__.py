"""Writes the folder of a new kernel, from a problem in KernelBench's form or from nothing."""
