"""The stages of the full battery, a file for each thing that a caller may do."""
