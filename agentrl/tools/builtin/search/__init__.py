"""The tool `search`: local indexes, servers, web-search APIs, models as search engines (docs/search.md)."""
