"""Tool-call formats: a parser for each, and the table of their names."""
