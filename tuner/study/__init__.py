"""A study: one pipeline from a configuration to its result, the process that it runs in, and the log of its trials."""
