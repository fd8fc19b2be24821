"""What a tuned model is made of at run time: the base class, the choice of a configuration, what ships."""
