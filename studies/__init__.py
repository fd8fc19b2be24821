"""The commands that people run: the command line, studies, comparisons, and what they print and draw."""
