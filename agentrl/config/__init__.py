"""The recipe: every section of it with its settings, and how recipe files are read. pydantic only."""
