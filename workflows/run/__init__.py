"""What all workflow types have in common: input, messages of clients, the turn, and tracing."""
