"""The kernels that ship with tunebench, and what every kernel builds on."""
