"""Results into and out of files and other databases."""
