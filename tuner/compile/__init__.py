"""Compilers behind one interface, all from the same `.cu` source, and the build cache in front of them."""
