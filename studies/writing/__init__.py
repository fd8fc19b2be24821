"""Code and files that commands write: new kernels, exported models, shipped results."""
