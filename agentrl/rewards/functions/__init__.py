"""Built-in reward functions, one file per family."""
