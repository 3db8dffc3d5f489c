"""Pages of the web: the tools `web`, in Chromium, and `http`, as text (docs/web.md, docs/http.md)."""
