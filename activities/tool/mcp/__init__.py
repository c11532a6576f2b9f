"""Tools of MCP servers: connections that are kept, the lists of tools, and calls."""
