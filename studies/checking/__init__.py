"""The parts of `check`: requests and reports, what runs in the judge's process, reproductions, run directories."""

PRELOAD = (
    "tunebench.studies.checking.check",
    "tunebench.studies.checking.on_file",
    "tunebench.studies.checking.on_kernel",
)
"""The modules that the processes of a check need, imported once by the server that they are forked from."""
