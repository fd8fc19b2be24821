"""The `triton` compiler: Triton functions to cubins, or run by Triton's interpreter where there is no GPU."""
