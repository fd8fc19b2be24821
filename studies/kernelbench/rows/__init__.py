"""Reductions of rows, and norms."""
