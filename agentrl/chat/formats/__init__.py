"""Tool-call formats: a parser for each, and their registry."""
