"""What clients and workers share for Temporal: connection, data converter, encryption, search attributes."""
