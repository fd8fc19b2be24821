"""The run time of tuned models: the base class, the choice of a configuration, the results that ship."""
