"""The gateway: HTTP protocols by which other programs use teams and agents. See docs/gateway.md."""
