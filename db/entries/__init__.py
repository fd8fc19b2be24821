"""One trial with everything that its result depends on: written, read, and passed between databases and files."""
