"""What clients and workers have in common for Temporal: connection, data converter, encryption, search attributes."""
