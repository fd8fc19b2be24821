"""The engine: searches, builds, checks and times kernels; it knows no kernel and no database."""
