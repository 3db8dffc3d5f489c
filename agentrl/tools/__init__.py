"""Tools that a model may call: the base, and the built-in ones."""
