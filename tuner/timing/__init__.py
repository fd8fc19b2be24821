"""Time: how it is taken, when there is enough of it, and what it decides."""
