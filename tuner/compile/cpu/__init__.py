"""The `cpu` compiler: the same `.cu` source, compiled by g++ and run on the host."""
