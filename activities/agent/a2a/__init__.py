"""Agents of A2AServers: the Agent-to-Agent protocol, versions 1.0 and 0.3, by JSON-RPC and HTTP+JSON."""
