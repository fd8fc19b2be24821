"""Studies: their files, what they tune and on which workers, how they run, and what is built of their results ahead."""

PRELOAD = (f"{__name__}.resolved",)
"""Modules that worker processes need, imported once by the server that they are forked from."""
