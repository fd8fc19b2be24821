"""Exports a tuned model as one file that needs torch and nvcc alone."""
