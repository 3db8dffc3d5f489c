"""The tool `search`: indices of this machine, servers, web-search APIs, a model that answers (docs/search.md)."""
