"""Search: which configuration is tried next, and how good a strategy is on recorded spaces."""
