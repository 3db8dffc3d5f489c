"""Built-in reward functions, a file for each family."""
