"""The `mcp` tool: what any MCP server offers, as tools (docs/mcp.md)."""
