"""The `sql` tool: a database that the model queries (docs/sql.md)."""
