"""Tools of MCP servers: shared connections, lists of tools, and calls."""
