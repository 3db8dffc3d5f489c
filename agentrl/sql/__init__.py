"""Databases that a model may query: SQLite and DuckDB, with limits (docs/sql.md)."""
