"""The `http` tool: a page of the web as text (docs/http.md)."""
