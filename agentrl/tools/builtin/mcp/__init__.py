"""The `mcp` tool: tools of any MCP server (docs/mcp.md)."""
