"""Conversations at the address of a Memory: its HTTP service, in its older and in its newer form."""
