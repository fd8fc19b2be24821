"""One operation of each element."""
