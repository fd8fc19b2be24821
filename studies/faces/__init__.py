"""The ways in: the command line, Python's functions, and the tools that agents call."""
